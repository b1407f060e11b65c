// How warm each expert of each layer is: numbers only, drawn by heatmap.js.

const kCold = 0.004;

export function createHeat(numLayers, numExperts) {
  const size = numLayers * numExperts;
  return {
    numLayers,
    numExperts,
    glow: new Float32Array(size), // 0 to 1, fading
    counts: new Float64Array(size), // picks that were seen
    maxCount: 0,
    last: new Map(), // layer -> ids of the last pass
  };
}

/** `picks` as /api/live has them; `perToken` ids belong to one position. */
export function addPicks(heat, picks, perToken) {
  for (const { layer, ids } of picks) {
    if (layer < 0 || layer >= heat.numLayers) continue;
    const positions = Math.max(1, ids.length / Math.max(1, perToken));
    // Of many positions at once each glows less, so that the popular ones stand out.
    const step = positions <= 1 ? 0.85 : Math.max(0.3, 2 / Math.sqrt(positions));
    for (const id of ids) {
      if (id < 0 || id >= heat.numExperts) continue;
      const at = layer * heat.numExperts + id;
      heat.glow[at] = Math.min(1, heat.glow[at] * 0.6 + step);
      heat.counts[at]++;
      if (heat.counts[at] > heat.maxCount) heat.maxCount = heat.counts[at];
    }
    heat.last.set(layer, ids.slice(-perToken));
  }
}

/** `fadeSeconds`: until two thirds are gone. Returns whether anything still glows. */
export function fade(heat, elapsedSeconds, fadeSeconds) {
  const factor = Math.exp(-elapsedSeconds / fadeSeconds);
  let isWarm = false;
  for (let at = 0; at < heat.glow.length; at++) {
    if (heat.glow[at] === 0) continue;
    const value = heat.glow[at] * factor;
    heat.glow[at] = value < kCold ? 0 : value;
    isWarm = true;
  }
  return isWarm;
}

/**
 * The warmest of each of `columns` groups of neighbours, row after row: what a screen has room for.
 * `sinceStart`: by all picks that were seen instead of the last ones.
 */
export function binned(heat, columns, sinceStart) {
  const cells = new Float32Array(heat.numLayers * columns);
  const scale = sinceStart && heat.maxCount > 0 ? 1 / Math.log1p(heat.maxCount) : 0;
  for (let layer = 0; layer < heat.numLayers; layer++) {
    for (let expert = 0; expert < heat.numExperts; expert++) {
      const at = layer * heat.numExperts + expert;
      const value = sinceStart ? Math.log1p(heat.counts[at]) * scale : heat.glow[at];
      const cell = layer * columns + Math.floor((expert * columns) / heat.numExperts);
      if (value > cells[cell]) cells[cell] = value;
    }
  }
  return cells;
}
