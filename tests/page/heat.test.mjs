import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { createHeat, addPicks, fade, binned } = await load("heat.js");

test("picks glow, are counted, and fade to nothing", () => {
  const heat = createHeat(3, 8);
  addPicks(heat, [{ layer: 1, ids: [2, 5] }], 2);
  assert.equal(heat.counts[1 * 8 + 2], 1);
  assert.ok(heat.glow[1 * 8 + 5] > 0.8);
  assert.equal(heat.glow[0], 0);
  assert.deepEqual(heat.last.get(1), [2, 5]);
  const before = heat.glow[1 * 8 + 5];
  assert.equal(fade(heat, 1, 1), true);
  assert.ok(Math.abs(heat.glow[1 * 8 + 5] - before / Math.E) < 1e-6);
  fade(heat, 100, 1);
  assert.equal(fade(heat, 1, 1), false);
  assert.equal(heat.counts[1 * 8 + 2], 1);
});

test("many positions glow less each", () => {
  const heat = createHeat(1, 64);
  addPicks(heat, [{ layer: 0, ids: Array.from({ length: 64 }, (_, id) => id) }], 1);
  assert.ok(heat.glow[0] < 0.5);
  assert.ok(heat.glow[0] > 0);
});

test("numbers out of range are ignored", () => {
  const heat = createHeat(2, 4);
  addPicks(heat, [{ layer: 2, ids: [0] }, { layer: -1, ids: [0] }, { layer: 0, ids: [4, -1] }], 1);
  assert.equal(heat.maxCount, 0);
});

test("a narrow screen shows the warmest of neighbours", () => {
  const heat = createHeat(1, 10);
  addPicks(heat, [{ layer: 0, ids: [3] }], 1);
  assert.deepEqual([...binned(heat, 5, false)].map((value) => value > 0), [false, true, false, false, false]);
  addPicks(heat, [{ layer: 0, ids: [3, 9] }], 2);
  const all = binned(heat, 5, true);
  assert.equal(all[1], 1);
  assert.ok(all[4] > 0 && all[4] < 1);
});
