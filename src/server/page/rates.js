// Rates of what happens less than once a second, which the server's rates over the last second show
// as nothing most of the time.

const kEnoughPerSecond = 2; // of events: then the server's own rate says it better

/** The rate of a total that grows: by the time between its last two changes. */
export function createRate() {
  let total = null;
  let changedAt = 0;
  let interval = 0; // seconds of one, 0: not known
  return {
    /** Nothing of that kind happens now: what comes next begins here. */
    rest(time, value) {
      total = value;
      changedAt = time;
      interval = 0;
    },
    /** `quick`: the server's rate. */
    update(time, value, quick) {
      if (total === null || value < total) this.rest(time, value);
      if (value > total) {
        interval = (time - changedAt) / (value - total);
        total = value;
        changedAt = time;
      }
      if (quick >= kEnoughPerSecond || interval === 0) return quick;
      // What takes longer than the last one did is slower.
      return 1 / Math.max(interval, time - changedAt);
    },
  };
}

/** A mean that forgets within `seconds`. */
export function createMean() {
  let mean = null;
  let before = 0;
  return {
    update(time, value, seconds) {
      const part = mean === null ? 1 : 1 - Math.exp(-Math.max(0, time - before) / Math.max(seconds, 0.001));
      mean = mean === null ? value : mean + (value - mean) * part;
      before = time;
      return mean;
    },
  };
}
