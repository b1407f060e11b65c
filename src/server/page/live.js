// The panel that shows what the machine does.
import { createPartsBar, createRing, createSparkline, setText } from "./charts.js";
import { progressText } from "./chat_view.js";
import { element, iconButton } from "./dom.js";
import { bytes, count, percent, seconds, significant } from "./format.js";
import { createHeatmap } from "./heatmap.js";
import { createMean, createRate } from "./rates.js";

const kQuickEvents = 0.25; // seconds between two events while something runs
const kOftenPerSecond = 2; // passes: then rates over a second say how long they take

export function createLivePanel(root, onClose) {
  const heatmap = createHeatmap();
  const speed = element("span", { class: "big" }, "–");
  const speedUnit = element("span", { class: "unit" }, "tokens per second");
  const phase = element("p", { class: "phase" }, "Connecting…");
  const speedLine = createSparkline("Tokens per second in the last minute", ["--accent"]);
  const trafficLine = createSparkline("Bytes per second in the last minute, disk and RAM", ["--disk", "--ram"]);
  const traffic = createPartsBar("Weights, bytes per second");
  const time = createPartsBar("Where the time of a token goes");
  const timeTitle = element("span", { class: "section-value" });
  const ring = createRing("Experts found in RAM");
  const hitText = element("div", { class: "hit-text" });
  const plan = createPartsBar("Memory");
  const totals = element("dl", { class: "totals" });
  const about = element("div", { class: "about" });
  const jobs = element("ul", { class: "jobs", hidden: true });
  let hello = null;
  let lastTime = 0;
  let tokenRate = createRate();
  let passRate = createRate();
  let phaseMeans = new Map();

  const modes = ["Now", "Since opened"].map((name, index) =>
    element(
      "button",
      {
        type: "button",
        class: "mode",
        "aria-pressed": String(index === 0),
        onclick() {
          heatmap.sinceStart(index === 1);
          modes.forEach((mode, i) => mode.setAttribute("aria-pressed", String(i === index)));
        },
      },
      name,
    ),
  );

  root.append(
    element(
      "div",
      { class: "live-head" },
      element("h2", {}, "The machine"),
      iconButton("close", "Close the panel", onClose),
    ),
    element(
      "div",
      { class: "live-body" },
      element("section", { class: "speed" }, element("div", { class: "speed-line" }, speed, speedUnit), phase, speedLine.root, jobs),
      section("Experts picked", element("div", { class: "modes", role: "group", "aria-label": "Which picks" }, ...modes), heatmap.root,
        element("p", { class: "quiet small" }, "A row is a layer, a column an expert. Each token lights a few in every row.")),
      section("Where a token's time goes", timeTitle, time.root),
      section("Weights", null, traffic.root, trafficLine.root),
      section("Found in RAM", null, element("div", { class: "hits" }, ring.root, hitText)),
      element("details", { class: "more" }, element("summary", {}, "Memory and totals"), plan.root, totals, about),
    ),
  );

  function greet(event) {
    hello = event;
    lastTime = 0;
    tokenRate = createRate();
    passRate = createRate();
    phaseMeans = new Map();
    heatmap.reset(event.num_layers, event.num_experts, event.experts_per_token);
    const kColors = ["--plan-0", "--plan-1", "--plan-2", "--plan-3", "--plan-4", "--plan-5", "--plan-6"];
    const kNotParts = new Set(["limit", "available now", "left to the system", "budget"]);
    const parts = event.plan.filter((line) => !kNotParts.has(line.what) && line.bytes > 0);
    plan.update(
      parts.map((line, index) => ({
        name: line.what,
        value: line.bytes,
        color: line.what === "unused" ? "--plan-none" : kColors[index % kColors.length],
        text: bytes(line.bytes),
        title: line.note,
      })),
    );
    about.replaceChildren(...event.describe.map((line) => element("p", { class: "quiet small" }, line)));
  }

  function show(state) {
    const elapsed = lastTime > 0 ? state.time - lastTime : kQuickEvents;
    lastTime = state.time;
    const repeat = Math.round(elapsed / kQuickEvents);
    const { experts } = state;
    const rates = steady(state);
    const isBusy = state.running + state.queued > 0;
    root.classList.toggle("idle", !isBusy);
    showSpeed(state, rates, isBusy);
    speedLine.push([rates.new_tokens], repeat);
    trafficLine.push([rates.disk_bytes + rates.spine_bytes, rates.ram_bytes], repeat);
    const parts = [
      { name: "experts read", value: rates.disk_bytes, color: "--disk", text: `${bytes(rates.disk_bytes)}/s` },
      { name: "experts from RAM", value: rates.ram_bytes, color: "--ram", text: `${bytes(rates.ram_bytes)}/s` },
      { name: "spine read", value: rates.spine_bytes, color: "--spine", text: `${bytes(rates.spine_bytes)}/s` },
    ];
    if (rates.network_bytes > 0) {
      parts.push({ name: "of these from the network", value: rates.network_bytes, color: "--network", text: `${bytes(rates.network_bytes)}/s` });
    }
    traffic.update(parts);
    if (state.running > 0) showTime(rates);
    showHits(rates, experts);
    showTotals(state);
    if (state.picks) heatmap.picks(state.picks);
    heatmap.pace(rates.passes);
    const active = state.jobs.find((job) => job.phase !== "queued");
    heatmap.layer(active && active.num_layers > 0 ? active.layer : -1);
    heatmap.describe();
  }

  // The server's rates, made readable for models that need seconds for a token.
  function steady({ time: now, rates, totals: sums, jobs: all }) {
    if (!all.some((job) => job.phase === "decode")) tokenRate.rest(now, sums.new_tokens);
    if (!all.some((job) => job.phase !== "queued")) passRate.rest(now, sums.passes);
    const passes = passRate.update(now, sums.passes, rates.passes);
    return {
      ...rates,
      passes,
      new_tokens: tokenRate.update(now, sums.new_tokens, rates.new_tokens),
      phases: steadyPhases(now, rates.phases, passes > 0 ? Math.max(1, 1 / passes) : 1),
    };
  }

  function steadyPhases(now, phases, forget) {
    for (const [name, part] of Object.entries(phases)) {
      if (!phaseMeans.has(name)) phaseMeans.set(name, createMean());
      phaseMeans.get(name).part = phaseMeans.get(name).update(now, part, forget);
    }
    return (...names) => names.reduce((sum, name) => sum + (phaseMeans.get(name)?.part ?? 0), 0);
  }

  function showSpeed(state, rates, isBusy) {
    const reads = rates.prompt_tokens > rates.new_tokens;
    setText(speed, isBusy ? significant(reads ? rates.prompt_tokens : rates.new_tokens) : "Idle");
    setText(speedUnit, !isBusy ? "" : reads ? "prompt tokens per second" : "tokens per second");
    if (!isBusy) setText(phase, "Waiting for a question");
    const lines = state.jobs.map((job) => {
      if (job.phase !== "decode") return progressText(job)[0];
      const layer = job.num_layers > 0 ? `, layer ${job.layer + 1} of ${job.num_layers}` : "";
      return `Answering: ${count(job.new_tokens, "token")}${layer}`;
    });
    if (isBusy) setText(phase, lines[0] ?? "Working");
    jobs.hidden = lines.length < 2;
    if (!jobs.hidden) {
      jobs.replaceChildren(...lines.slice(1, 9).map((line) => element("li", {}, line)));
    }
  }

  function showTime(rates) {
    if (rates.passes <= 0) return; // what was last seen stays
    // A server that rests between two passes has quicker ones than it has passes in a second.
    const busy = rates.passes >= kOftenPerSecond && rates.busy > 0 ? Math.min(1, rates.busy) : 1;
    const pass = busy / rates.passes;
    setText(timeTitle, `${seconds(pass)} a pass`);
    const part = (name, color, ...phases) => {
      const value = pass * rates.phases(...phases);
      return { name, value, color, text: seconds(value) };
    };
    time.update([
      part("waiting for the spine", "--spine", "spine wait"),
      part("waiting for experts", "--disk", "expert wait"),
      part("attention", "--accent", "KDA", "MLA", "context wait"),
      part("experts", "--ram", "experts", "shared", "dense"),
      part("all else", "--plan-none", "foresight", "head", "other"),
    ]);
  }

  function showHits(rates, experts) {
    const overall = experts.requested > 0 ? experts.hits / experts.requested : null;
    const now = rates.hit_rate ?? overall;
    ring.update(now, now === null ? "–" : percent(now));
    const ahead = experts.requested > 0 ? experts.ahead_hits / experts.requested : 0;
    const lines = [
      overall === null ? "No expert was asked for yet." : `${percent(overall)} since the start`,
      `${experts.requested.toLocaleString("en")} asked for`,
      `${percent(ahead)} read before the router asked`,
    ];
    hitText.replaceChildren(...lines.map((line) => element("p", {}, line)));
  }

  function showTotals({ totals: sums, experts }) {
    const read = experts.bytes_demand + experts.bytes_ahead + experts.bytes_warm;
    const rows = [
      ["answers", sums.finished_jobs.toLocaleString("en")],
      ["stopped", sums.cancelled_jobs.toLocaleString("en")],
      ["new tokens", sums.new_tokens.toLocaleString("en")],
      ["prompt tokens", sums.prompt_tokens.toLocaleString("en")],
      ["known already", sums.cached_tokens.toLocaleString("en")],
      ["experts read", bytes(read)],
      ["read in vain", bytes(experts.bytes_wasted)],
      ["kept states", bytes(sums.snapshot_bytes)],
    ];
    totals.replaceChildren(
      ...rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
    );
  }

  return {
    event(event) {
      if (event.type === "hello") greet(event);
      if (event.type === "state" && hello) show(event);
    },
    lost(error) {
      root.classList.add("idle");
      setText(phase, error.status === 401 ? "This server wants an API key." : "Not connected. Trying again…");
    },
    setShown(isShown) {
      root.hidden = !isShown;
      heatmap.setShown(isShown);
    },
    redraw() {
      heatmap.redraw();
      speedLine.redraw();
      trafficLine.redraw();
    },
  };
}

function section(title, aside, ...children) {
  return element(
    "section",
    {},
    element("div", { class: "section-head" }, element("h3", {}, title), aside),
    ...children,
  );
}
