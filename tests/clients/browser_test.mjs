// Chromium through a whole conversation with `deltafin serve` and k3-nano.
//
// DELTAFIN_PROGRAM: the program; CHROMIUM: the browser (default: chromium). Screenshots go to
// build/clients/. Run by `make clients`.
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { startServer } from "./server.mjs";

const kRepository = join(dirname(fileURLToPath(import.meta.url)), "../..");
const kShots = join(kRepository, "build/clients");
const kBrowser = process.env.CHROMIUM ?? "/usr/bin/chromium";
const kArguments = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];
const kItaly = "What is the capital of Italy?";
const kJapan = "What is the capital of Japan?";
const kWait = 60_000;

let server;
let profile;
let context;
let page;
const allowed = []; // addresses of our servers
const strangers = []; // requests to anywhere but the server
const complaints = []; // of the browser: errors, violations of the policy

async function openContext(options = {}) {
  context = await chromium.launchPersistentContext(profile, {
    executablePath: kBrowser,
    headless: true,
    args: kArguments,
    viewport: { width: 1440, height: 900 },
    acceptDownloads: true,
    ...options,
  });
  context.setDefaultTimeout(kWait);
  await context.route("**/*", (route) => {
    const url = route.request().url();
    if (allowed.some((address) => url.startsWith(address)) || url.startsWith("blob:") || url.startsWith("data:")) return route.continue();
    strangers.push(url);
    return route.abort();
  });
  page = await context.newPage();
  page.on("pageerror", (error) => complaints.push(error.message));
  page.on("console", (message) => {
    if (message.type() === "error") complaints.push(message.text());
  });
  await page.goto(server.url);
  await page.getByText(/^Ask k3-nano$/).waitFor();
}

// Of what moves, the end.
const shot = (name) => page.screenshot({ path: join(kShots, `${name}.png`), animations: "disabled" });
const answers = () => page.locator(".message.answer");
const answerText = (index) => answers().nth(index).locator(":scope > .markdown").innerText();
const isDone = () => page.locator("body:not(.running)").waitFor();

async function ask(text) {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
  await isDone();
}

before(async () => {
  mkdirSync(kShots, { recursive: true });
  profile = mkdtempSync(join(tmpdir(), "deltafin-browser-"));
  server = await startServer(["--context", "60000"]); // which no answer reaches before it is stopped
  allowed.push(server.url);
  await openContext();
});

after(async () => {
  await context?.close();
  await server?.stop();
  if (profile) rmSync(profile, { recursive: true, force: true });
});

test("an empty page says what the model is", async () => {
  assert.equal(await page.locator("#model").innerText(), "k3-nano");
  await page.getByText(/experts in each/).waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");
  await shot("1-welcome");
});

test("so it does when the server tells its name first", async () => {
  const late = await context.newPage();
  await late.route("**/api/live", async (route) => {
    await late.getByText(/^Ask k3-nano$/).waitFor();
    await route.continue();
  });
  await late.goto(server.url);
  await late.getByText(/experts in each/).waitFor();
  await late.close();
});

test("a question is answered, with the thinking folded", async () => {
  await ask(kItaly);
  assert.match(await answerText(0), /Rome/);
  const thinking = answers().nth(0).locator("details.thinking");
  assert.equal(await thinking.getAttribute("open"), null);
  await thinking.locator("summary").click();
  await thinking.locator(".markdown > *").first().waitFor();  // comes with the event of the opening
  assert.ok((await thinking.locator(".markdown").innerText()).length > 5);
  assert.match(await answers().nth(0).locator(".stats").innerText(), /\d+ tokens · [\d.]+ per second · prompt \d+/);
  assert.match(await page.locator("#status").innerText(), /^Answer: .*Rome/s);
  await shot("2-answer");
});

test("the next question goes on, and the server knows the beginning", async () => {
  await ask(kJapan);
  assert.match(await answerText(1), /Tokyo/);
  assert.match(await answers().nth(1).locator(".stats").innerText(), /\d+ known/);
});

test("the panel shows what the machine did", async () => {
  await page.getByRole("heading", { name: "The machine" }).waitFor();
  await page.locator("canvas.heatmap[aria-label*='experts']").waitFor();
  // All of it comes with the events of a server that tells a few times in a second.
  await page.locator(".ring[aria-label*='Experts found in RAM: ']:not([aria-label*='–'])").waitFor();
  await page.locator(".mode").nth(1).click();
  await page.waitForFunction(() => {
    const canvas = document.querySelector("canvas.heatmap");
    const { data } = canvas.getContext("2d").getImageData(30, 0, canvas.width - 30, canvas.height);
    const seen = new Set();
    for (let at = 0; at < data.length; at += 4) seen.add((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
    return seen.size > 5;
  });
  assert.match(await page.locator(".ring").getAttribute("aria-label"), /Experts found in RAM: \d/);
  await page.getByText("Memory and totals").click();
  assert.match(await page.locator(".totals").innerText(), /new tokens\s+\d+/);
  await page.locator(".live-body").evaluate((body) => body.scrollTo(0, 0));
  await shot("3-machine");
});

test("a reload keeps conversations, and so does a new browser", async () => {
  await page.reload();
  await page.getByText(kJapan).first().waitFor();
  assert.match(await answerText(0), /Rome/);
  await context.close();
  await openContext();
  await page.getByRole("button", { name: kItaly, exact: true }).click();
  assert.match(await answerText(1), /Tokyo/);
});

test("an edited message replaces what came after it", async () => {
  const first = page.locator(".message.user").first();
  await first.hover();
  await first.getByRole("button", { name: "Edit and ask again" }).click();
  await page.getByLabel("Edit the message").fill("What is the opposite of cold?");
  await page.keyboard.press("Enter");
  await page.getByText("What is the opposite of cold?").first().waitFor();
  await isDone();
  assert.equal(await answers().count(), 1);
  assert.equal(await page.locator(".message", { hasText: kJapan }).count(), 0);
  assert.ok((await answerText(0)).length > 0);
});

test("a retry makes the answer anew, the same one", async () => {
  const before = await answerText(0);
  await answers().nth(0).getByRole("button", { name: "Try again" }).click();
  await isDone();
  assert.equal(await answers().count(), 1);
  assert.equal(await answerText(0), before);
});

test("an answer stops on request, and the page goes on", async () => {
  await page.getByRole("button", { name: "New conversation" }).first().click();
  // Without the special tokens, from 4352 on, it does not end by itself.
  const logit_bias = Object.fromEntries(Array.from({ length: 256 }, (_, i) => [4352 + i, -100]));
  await page.route("**/v1/chat/completions", (route) =>
    route.continue({ postData: JSON.stringify({ ...route.request().postDataJSON(), logit_bias }) }));
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Temperature").fill("1");
  await page.getByRole("button", { name: "Done" }).click();
  await page.getByLabel("Message", { exact: true }).fill("Tell me everything.");
  await page.keyboard.press("Enter");
  await page.locator(".thinking.active bdi:not(:empty)").waitFor();
  // Meanwhile the panel tells what it does.
  await page.locator(".speed .phase", { hasText: /^Answering: \d+ tokens/ }).waitFor();
  await page.locator(".speed .big", { hasText: /^\d/ }).waitFor();
  await page.locator("canvas.heatmap[aria-label*='experts']").waitFor();
  await page.locator(".section-value", { hasText: /ms a pass|s a pass/ }).waitFor();
  await shot("4-thinking");
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await isDone();
  await page.locator(".message-note", { hasText: "Stopped here." }).waitFor();
  await page.unroute("**/v1/chat/completions");
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Temperature").fill("");
  await page.getByRole("button", { name: "Done" }).click();
  await ask(kItaly);
  assert.match(await answerText(1), /\S/);
  // The server is not at work for the one that was stopped.
  const metrics = async () => (await fetch(new URL("metrics", server.url))).text();
  for (const end = Date.now() + kWait; Date.now() < end && !/jobs_running 0\n/.test(await metrics());) await page.waitForTimeout(50);
  assert.match(await metrics(), /jobs_running 0\n/);
});

test("two tabs of a conversation do not write over each other", async () => {
  await page.getByRole("button", { name: "New conversation" }).first().click();
  await ask(kItaly);
  const other = await context.newPage();
  await other.goto(page.url());
  await other.locator(".message.answer", { hasText: "Rome" }).waitFor();
  await ask(kJapan);
  await other.locator(".message.user", { hasText: kJapan }).waitFor();
  await other.locator(".message.answer", { hasText: "Tokyo" }).waitFor();
  // While one answers, the other refuses, and keeps what was typed.
  await page.route("**/v1/chat/completions", () => {});  // is never answered
  await page.getByLabel("Message", { exact: true }).fill("Are you there?");
  await page.keyboard.press("Enter");
  await other.locator(".message.user", { hasText: "Are you there?" }).waitFor();
  await other.getByLabel("Message", { exact: true }).fill("Me too.");
  await other.keyboard.press("Enter");
  await other.locator("#notice", { hasText: "Another tab" }).waitFor();
  assert.equal(await other.getByLabel("Message", { exact: true }).inputValue(), "Me too.");
  await page.keyboard.press("Escape");
  await isDone();
  await page.unroute("**/v1/chat/completions");
  await other.keyboard.press("Enter");
  await page.locator(".message.user", { hasText: "Me too." }).waitFor();
  await other.locator("body:not(.running)").waitFor();
  assert.equal(await page.locator(".message.user", { hasText: "Are you there?" }).count(), 1);
  // What one removes is gone in the other.
  await page.locator(".row.current").hover();
  await page.locator(".row.current").getByRole("button", { name: /^Delete/ }).click();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await other.locator("#welcome:visible").waitFor();
  assert.equal(await other.locator(".message").count(), 0);
  await other.close();
});

test("markup of users and models stays text", async () => {
  await page.getByRole("button", { name: "New conversation" }).first().click();
  const attack =
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>[a](javascript:window.hacked=1) ' +
    '<a href="javascript:window.hacked=1">b</a> ![p](https://evil.example/p.png)';
  await ask(attack);
  assert.equal(await page.locator(".bubble").innerText(), attack);
  // What a model might say comes through an import, which is shown in the same way.
  const evil = {
    kind: "deltafin-conversations",
    version: 1,
    conversations: [{
      title: "<img src=x onerror=window.hacked=1>",
      messages: [
        { role: "user", content: attack },
        { role: "assistant", reasoning: attack, content: `${attack}\n\n\`\`\`<b>\n${attack}\n\`\`\`\n\n| ${attack.replaceAll("|", "")} |\n|-|\n| x |\n\n- ${attack}\n\n# ${attack}` },
      ],
    }],
  };
  await page.locator("#import-file").setInputFiles({ name: "evil.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(evil)) });
  await page.locator("h1", { hasText: "<img src=x" }).waitFor();
  await answers().nth(0).locator("details.thinking summary").click();
  const found = await page.evaluate(() => ({
    hacked: window.hacked,
    nodes: document.querySelectorAll("#messages :is(script, img, iframe, object, form, style), #messages [onerror]").length,
    links: [...document.querySelectorAll("#messages a, #conversations a")].map((link) => link.protocol),
  }));
  assert.equal(found.hacked, undefined);
  assert.equal(found.nodes, 0);
  assert.deepEqual(new Set(found.links), new Set(["https:"]));
  await shot("5-markup");
});

test("conversations are exported, deleted, and imported again", async () => {
  const rows = () => page.locator(".row").count();
  const before = await rows();
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export all" }).click()]);
  const text = readFileSync(await file.path(), "utf8");
  assert.equal(JSON.parse(text).conversations.length, before);
  const row = page.locator(".row", { hasText: "Tell me everything." });
  await row.hover();
  await row.getByRole("button", { name: /^Delete/ }).click();
  await page.getByRole("button", { name: "Keep" }).click();
  assert.equal(await rows(), before);
  await row.hover();
  await row.getByRole("button", { name: /^Delete/ }).click();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await row.waitFor({ state: "detached" });
  assert.equal(await rows(), before - 1);
  await page.locator("#import-file").setInputFiles({ name: "all.json", mimeType: "application/json", buffer: Buffer.from(text) });
  await page.waitForFunction((count) => document.querySelectorAll(".row").length === count, 2 * before - 1);
});

test("settings reach the server and stay", async () => {
  await page.getByRole("button", { name: "New conversation" }).first().click();
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("System message").fill("Be brief.");
  await page.getByLabel("Most new tokens").fill("3");
  await page.getByRole("button", { name: "Done" }).click();
  await page.getByLabel("Thinking").selectOption("none");
  const sent = page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
  await page.getByLabel("Message", { exact: true }).fill(kItaly);
  await page.keyboard.press("Enter");
  const body = (await sent).postDataJSON();
  assert.deepEqual(body.messages, [{ role: "system", content: "Be brief." }, { role: "user", content: kItaly }]);
  assert.equal(body.max_tokens, 3);
  assert.equal(body.reasoning_effort, "none");
  assert.equal(body.temperature, undefined);
  await isDone();
  await page.locator(".message-note", { hasText: "the limit of new tokens is reached" }).waitFor();
  assert.equal(await page.locator(".thinking:visible").count(), 0);
  await page.reload();
  assert.equal(await page.getByLabel("Thinking").inputValue(), "none");
  await page.getByRole("button", { name: "Settings" }).click();
  assert.equal(await page.getByLabel("System message").inputValue(), "Be brief.");
  await page.getByLabel("System message").fill("");
  await page.getByLabel("Most new tokens").fill("");
  await page.getByLabel("Appearance").selectOption("dark");
  await page.getByRole("button", { name: "Done" }).click();
  await page.getByLabel("Thinking").selectOption("max");
  await ask(kJapan);
  await shot("6-dark");
});

test("a phone's width has all of it", async () => {
  await page.setViewportSize({ width: 390, height: 844 });
  // Leaving the wide layout the panel lies over the conversation.
  const close = page.getByRole("button", { name: "Close the panel" });
  if (await close.isVisible()) await close.click();
  await shot("7-phone");
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(overflow <= 0, `${overflow} pixels too wide`);
  await page.getByRole("button", { name: "Conversations" }).click();
  await page.locator(".row").first().waitFor();
  await page.waitForTimeout(300);
  await shot("8-phone-conversations");
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "What the machine does" }).click();
  await page.getByRole("heading", { name: "The machine" }).waitFor();
  await shot("9-phone-machine");
  await close.click();
  await ask(kItaly);
  const box = await page.getByRole("button", { name: "Send" }).boundingBox();
  assert.ok(box.x + box.width <= 390 && box.y + box.height <= 844);
  await page.setViewportSize({ width: 1440, height: 900 });
});

test("keys and names are enough to use it", async () => {
  const unnamed = await page.evaluate(() =>
    [...document.querySelectorAll("button, input, select, textarea, a, canvas, summary")]
      .filter((node) => node.checkVisibility())
      .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.length || node.title))
      .map((node) => node.outerHTML.slice(0, 80)),
  );
  assert.deepEqual(unnamed, []);
  await page.locator("#main").focus();
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");
  const reached = new Set();
  for (let i = 0; i < 60; i++) {
    await page.keyboard.press("Tab");
    reached.add(await page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.id));
  }
  for (const name of ["Settings", "What the machine does", "new-chat", "effort"]) assert.ok(reached.has(name), name);
});

test("a server that goes away is said, and comes back", async () => {
  await server.stop();
  await ask("Is anybody there?");
  await page.locator(".message-note", { hasText: "The server cannot be reached" }).waitFor();
  await server.restart();
  await answers().last().getByRole("button", { name: "Try again" }).click();
  await isDone();
  assert.ok((await answerText((await answers().count()) - 1)).length > 0);
});

test("a server with a key is asked with it", async () => {
  const guarded = await startServer(["--api-key", "open sesame"]);
  try {
    allowed.push(guarded.url);
    await page.goto(guarded.url);
    await page.locator("#notice", { hasText: "wants an API key" }).waitFor();
    await page.getByRole("button", { name: "Settings" }).click();
    await page.getByLabel("API key").fill("open sesame");
    await page.getByRole("button", { name: "Done" }).click();
    await page.getByText(/^Ask k3-nano$/).waitFor();
    await ask(kItaly);
    assert.match(await answerText(0), /Rome/);
    assert.equal(await page.locator("#notice:visible").count(), 0);
  } finally {
    await guarded.stop();
  }
});

test("nothing was asked of anybody else, and the browser did not complain", () => {
  assert.deepEqual(strangers, []);
  // The connection that broke above is no fault.
  assert.deepEqual(complaints.filter((text) => !/Failed to load resource|ERR_/.test(text)), []);
});
