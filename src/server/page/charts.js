// Small charts of the live panel.
import { colorOf, element } from "./dom.js";

const kSamples = 240; // a minute, four a second

/** An area that shows the last minute of one or two values stacked on each other. */
export function createSparkline(label, colors) {
  const canvas = element("canvas", { class: "spark", role: "img", "aria-label": label });
  const samples = colors.map(() => new Float64Array(kSamples));
  let inks = null;

  function paint() {
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    if (width === 0 || height === 0) return;
    const ratio = Math.min(devicePixelRatio || 1, 3);
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== w || canvas.height !== h) {
      canvas.width = w;
      canvas.height = h;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    let highest = 0;
    for (let i = 0; i < kSamples; i++) {
      highest = Math.max(highest, samples.reduce((sum, values) => sum + values[i], 0));
    }
    if (highest === 0) return;
    inks ??= colors.map(colorOf);
    const x = (i) => (i / (kSamples - 1)) * width;
    const base = new Float64Array(kSamples);
    samples.forEach((values, index) => {
      const y = (i) => height - 1 - ((base[i] + values[i]) / highest) * (height - 4);
      const color = inks[index];
      context.beginPath();
      context.moveTo(0, y(0));
      for (let i = 1; i < kSamples; i++) context.lineTo(x(i), y(i));
      context.strokeStyle = color;
      context.lineWidth = 1.5;
      context.lineJoin = "round";
      context.stroke();
      for (let i = kSamples - 1; i >= 0; i--) {
        context.lineTo(x(i), height - 1 - (base[i] / highest) * (height - 4));
      }
      context.globalAlpha = 0.18;
      context.fillStyle = color;
      context.fill();
      context.globalAlpha = 1;
      for (let i = 0; i < kSamples; i++) base[i] += values[i];
    });
  }

  new ResizeObserver(paint).observe(canvas);
  return {
    root: canvas,
    /** `repeat`: samples that this one stands for (events come slower when nothing happens). */
    push(values, repeat = 1) {
      const steps = Math.min(kSamples, Math.max(1, repeat));
      values.forEach((value, index) => {
        samples[index].copyWithin(0, steps);
        samples[index].fill(value, kSamples - steps);
      });
      paint();
    },
    /** Colours may have changed. */
    redraw() {
      inks = null;
      paint();
    },
  };
}

/** A bar of parts: [{name, value, color, text}], with a legend. */
export function createPartsBar(label) {
  const bar = element("div", { class: "parts-bar", "aria-hidden": "true" });
  const legend = element("ul", { class: "legend" });
  const root = element("div", { role: "group", "aria-label": label }, bar, legend);
  return {
    root,
    update(parts) {
      const total = parts.reduce((sum, part) => sum + part.value, 0) || 1;
      while (bar.childNodes.length < parts.length) {
        bar.append(element("div", { class: "part" }));
        legend.append(
          element("li", {}, element("i", { class: "dot" }), element("span"), element("b")),
        );
      }
      while (bar.childNodes.length > parts.length) {
        bar.lastChild.remove();
        legend.lastChild.remove();
      }
      parts.forEach((part, index) => {
        const piece = bar.childNodes[index];
        piece.style.flexGrow = String(part.value / total);
        piece.style.background = `var(${part.color})`;
        piece.classList.toggle("none", part.value <= 0);
        const [dot, name, value] = legend.childNodes[index].childNodes;
        dot.style.background = `var(${part.color})`;
        setText(name, part.name);
        setText(value, part.text);
        legend.childNodes[index].title = part.title ?? "";
      });
    },
  };
}

/** A ring that is filled to a part. */
export function createRing(label) {
  const value = element("span", { class: "ring-value" }, "–");
  const root = element(
    "div",
    { class: "ring", role: "img", "aria-label": label },
    element("div", { class: "ring-face" }, value),
  );
  return {
    root,
    update(part, text) {
      root.style.setProperty("--part", String(part ?? 0));
      setText(value, text);
      root.setAttribute("aria-label", `${label}: ${text}`);
    },
  };
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
