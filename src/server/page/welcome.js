// What an empty conversation shows.
import { element } from "./dom.js";
import { bytes } from "./format.js";

const kQuestions = [
  "What is the capital of Japan?",
  "What is the opposite of cold?",
  "Count from one to ten.",
];

// Weights of a token beyond this do not fit the RAM of ordinary computers.
const kLargeModelBytes = 8e9;

export function showWelcome(root, hello, model, isPersistent, ask) {
  const isLarge = hello && hello.bytes_per_token > kLargeModelBytes;
  root.replaceChildren(
    element("img", { src: "icon.svg", alt: "", width: "56", height: "56" }),
    element("p", { class: "welcome-title" }, model ? `Ask ${model}` : "Connecting…"),
    hello ? element("p", { class: "quiet" }, describe(hello)) : "",
    element(
      "div",
      { class: "welcome-questions" },
      ...kQuestions.map((question) =>
        element("button", { type: "button", class: "chip", onclick: () => ask(question) }, question),
      ),
    ),
    isLarge
      ? element(
          "p",
          { class: "quiet" },
          `Each token touches ${bytes(hello.bytes_per_token)} of weights, most of them on the disk: ` +
            "an answer may take minutes to hours. You can watch it at work in the panel.",
        )
      : "",
    isPersistent
      ? ""
      : element("p", { class: "quiet" }, "This browser keeps nothing: export what you want to keep."),
  );
}

function describe(hello) {
  return (
    `${hello.num_layers} layers, ${hello.num_experts} experts in each, ` +
    `${hello.experts_per_token} of them for a token. It runs on this computer.`
  );
}
