import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { createRate, createMean } = await load("rates.js");

test("what happens every four seconds has a rate in between", () => {
  const rate = createRate();
  rate.rest(100, 7);
  assert.equal(rate.update(101, 7, 0), 0); // nothing is known yet
  assert.equal(rate.update(104, 8, 1), 0.25);
  assert.equal(rate.update(106, 8, 0), 0.25);
  assert.equal(rate.update(112, 8, 0), 0.125); // this one takes longer
  assert.equal(rate.update(114, 9, 1), 0.1);
});

test("what happens often has the server's rate", () => {
  const rate = createRate();
  rate.rest(0, 0);
  assert.equal(rate.update(0.25, 10, 35), 35);
});

test("idle time is not counted, nor is a server that began anew", () => {
  const rate = createRate();
  rate.update(0, 5, 0);
  rate.rest(1000, 5);
  assert.equal(rate.update(1004, 6, 0), 0.25);
  assert.equal(rate.update(2, 1, 0), 0);
});

test("a mean follows within its seconds", () => {
  const mean = createMean();
  assert.equal(mean.update(0, 1, 10), 1);
  assert.ok(Math.abs(mean.update(10, 0, 10) - 1 / Math.E) < 1e-9);
  assert.ok(mean.update(1000, 0, 10) < 1e-9);
});
