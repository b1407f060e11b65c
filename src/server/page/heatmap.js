// The heat map: a row for each layer, a column for each expert, warm where the router picked.
import { addPicks, binned, createHeat, fade } from "./heat.js";
import { colorOf, element } from "./dom.js";

const kTop = 6; // so that the first number is whole
const kGutter = 26; // pixels for the numbers of layers
const kMinRow = 2.6;
const kMaxRow = 16;
const kMaxHeight = 330;
const kMinColumn = 2; // device pixels
const kFadePasses = 1.5; // until a pick has lost two thirds of its glow
const kMinFade = 0.45; // seconds
const kMaxFade = 8;
const kScanFade = 0.75; // of models slower than this one sees the pass go through the layers
const kScanCatchUp = 6; // per second: how fast the line follows the layer
const kRampSteps = 256;

export function createHeatmap() {
  const canvas = element("canvas", { class: "heatmap", role: "img", tabindex: "0" });
  const tip = element("div", { class: "heat-tip", hidden: true });
  const root = element("div", { class: "heat-frame" }, canvas, tip);
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let heat = null;
  let perToken = 1;
  let sinceStart = false;
  let activeLayer = -1;
  let scan = -1; // the layer where the line is, between two of them too
  let geometry = null;
  let colors = null;
  let isShown = true;
  let frame = 0;
  let drawnAt = 0;
  let fadeSeconds = kMaxFade;

  function layout() {
    if (!heat) return;
    const width = root.clientWidth;
    if (width === 0) return;
    const ratio = Math.min(devicePixelRatio || 1, 3);
    const room = width - kGutter;
    const row = Math.min(kMaxRow, Math.max(kMinRow, kMaxHeight / heat.numLayers));
    const columns = Math.min(heat.numExperts, Math.floor((room * ratio) / kMinColumn));
    geometry = { width, ratio, row, columns, height: row * heat.numLayers + kTop, cell: room / columns };
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(geometry.height * ratio);
    canvas.style.height = `${geometry.height}px`;
  }

  function paint() {
    if (!heat || !geometry) return;
    colors ??= { ramp: makeRamp(), accent: colorOf("--accent"), quiet: colorOf("--quiet") };
    const { ramp } = colors;
    const { ratio, row, columns, cell, width, height } = geometry;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const cells = binned(heat, columns, sinceStart);
    const gapX = cell > 4 ? 1 : cell > 2.5 ? 0.5 : 0;
    const gapY = row > 5 ? 1 : row > 3 ? 0.5 : 0.25;
    context.fillStyle = ramp[0];
    for (let layer = 0; layer < heat.numLayers; layer++) {
      const y = kTop + layer * row;
      if (gapX === 0) {
        context.fillStyle = ramp[0];
        context.fillRect(kGutter, y, width - kGutter, row - gapY);
      }
      for (let column = 0; column < columns; column++) {
        const value = cells[layer * columns + column];
        if (value === 0 && gapX === 0) continue;
        context.fillStyle = ramp[Math.min(kRampSteps - 1, Math.floor(value * kRampSteps))];
        context.fillRect(kGutter + column * cell, y, cell - gapX, row - gapY);
      }
    }
    paintScan(context);
    paintGutter(context);
  }

  function paintScan(context) {
    if (scan < 0) return;
    const { row, width } = geometry;
    context.globalAlpha = 0.35;
    context.fillStyle = colors.accent;
    context.fillRect(kGutter, kTop + scan * row, width - kGutter, Math.max(2, row));
    context.globalAlpha = 1;
  }

  // Returns whether the line is still on its way.
  function moveScan(elapsed) {
    if (activeLayer < 0 || fadeSeconds < kScanFade) {
      scan = -1;
    } else if (scan < 0 || activeLayer < scan) {
      scan = activeLayer; // a new pass begins at the top
    } else {
      scan += (activeLayer - scan) * Math.min(1, kScanCatchUp * elapsed);
    }
    return scan >= 0 && activeLayer - scan > 0.05;
  }

  function paintGutter(context) {
    const { row } = geometry;
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    const step = row > 11 ? 2 : row > 5 ? 5 : 10;
    for (let layer = 0; layer < heat.numLayers; layer++) {
      const isActive = layer === activeLayer;
      if (isActive) {
        context.fillStyle = colors.accent;
        context.fillRect(kGutter - 5, kTop + layer * row, 2.5, Math.max(2, row - 1));
      } else if (layer % step === 0) {
        context.fillStyle = colors.quiet;
        context.fillText(String(layer), kGutter - 8, kTop + layer * row + row / 2);
      }
    }
  }

  function step(time) {
    frame = 0;
    if (!heat) return;
    const elapsed = drawnAt === 0 ? 0 : Math.min(1, (time - drawnAt) / 1000);
    drawnAt = time;
    const isWarm = fade(heat, elapsed, fadeSeconds);
    const isMoving = moveScan(elapsed);
    paint();
    if ((isWarm || isMoving) && isShown && !document.hidden && !calm.matches) frame = requestAnimationFrame(step);
    else drawnAt = calm.matches ? time : 0;
  }

  function wake() {
    if (frame === 0 && isShown && !document.hidden) frame = requestAnimationFrame(step);
  }

  function cellAt(x, y) {
    if (!heat || !geometry || x < kGutter) return null;
    const layer = Math.floor((y - kTop) / geometry.row);
    const expert = Math.floor(((x - kGutter) / (geometry.width - kGutter)) * heat.numExperts);
    if (layer < 0 || layer >= heat.numLayers || expert < 0 || expert >= heat.numExperts) return null;
    return { layer, expert };
  }

  canvas.addEventListener("pointermove", (event) => {
    const cell = cellAt(event.offsetX, event.offsetY);
    tip.hidden = cell === null;
    if (!cell) return;
    const picks = heat.counts[cell.layer * heat.numExperts + cell.expert];
    tip.textContent = `Layer ${cell.layer}, expert ${cell.expert}: picked ${picks.toLocaleString("en")} times`;
    tip.style.top = `${event.offsetY + 14}px`;
    tip.style.left = `${Math.min(event.offsetX, geometry.width - 190)}px`;
  });
  canvas.addEventListener("pointerleave", () => {
    tip.hidden = true;
  });
  new ResizeObserver(() => {
    layout();
    paint();
  }).observe(root);
  document.addEventListener("visibilitychange", wake);

  return {
    root,
    reset(numLayers, numExperts, expertsPerToken) {
      if (heat && heat.numLayers === numLayers && heat.numExperts === numExperts) return;
      heat = createHeat(numLayers, numExperts);
      perToken = expertsPerToken;
      layout();
      describe();
      wake();
    },
    picks(picks) {
      if (!heat) return;
      addPicks(heat, picks, perToken);
      wake();
    },
    /** A pick glows for as long as the next passes take, so that fast and slow models look calm. */
    pace(passesPerSecond) {
      if (passesPerSecond > 0) {
        fadeSeconds = Math.min(kMaxFade, Math.max(kMinFade, kFadePasses / passesPerSecond));
      }
    },
    layer(layer) {
      if (layer === activeLayer) return;
      activeLayer = layer;
      wake();
    },
    sinceStart(value) {
      sinceStart = value;
      wake();
    },
    setShown(value) {
      isShown = value;
      layout();
      wake();
    },
    /** Colours may have changed. */
    redraw() {
      colors = null;
      wake();
    },
    describe,
  };

  /** For those who cannot see it. */
  function describe() {
    if (!heat) return;
    const used = heat.counts.reduce((sum, count) => sum + (count > 0 ? 1 : 0), 0);
    canvas.setAttribute(
      "aria-label",
      `Experts picked by layer: ${heat.numLayers} layers of ${heat.numExperts} experts, ` +
        `${used.toLocaleString("en")} of them used since this page was opened.`,
    );
  }
}

// Colours from cold to hot, as the style sheet names them.
function makeRamp() {
  const stops = [0, 1, 2, 3, 4].map((index) => colorOf(`--heat-${index}`).match(/[\d.]+/g).map(Number));
  const places = [0, 0.08, 0.35, 0.7, 1];
  return Array.from({ length: kRampSteps }, (_, step) => {
    const value = step / (kRampSteps - 1);
    let right = 1;
    while (right < places.length - 1 && value > places[right]) right++;
    const part = (value - places[right - 1]) / (places[right] - places[right - 1]);
    const mixed = stops[right].map((to, i) => stops[right - 1][i] + (to - stops[right - 1][i]) * part);
    return `rgb(${mixed.slice(0, 3).map(Math.round).join(" ")})`;
  });
}
