// Points for charts: the node's samples where it sends any, else what this page has seen itself.

const KEPT_MS = 3_600_000;

export class History {
  #seen = new Map();

  /** A value over time, such as a queue's length. */
  levels(id, details, value, now) {
    const points = samples(details).map(({ sample, timestamp }) => [timestamp, sample]);
    return this.#withNow(id, points, value, now);
  }

  /** How fast a counter grew over time. */
  rates(id, details, now) {
    const counters = samples(details);
    const points = counters.slice(1).map(({ sample, timestamp }, at) => {
      const before = counters[at];
      const elapsed = (timestamp - before.timestamp) / 1000;
      return [timestamp, Math.max(0, (sample - before.sample) / elapsed)];
    });
    return this.#withNow(id, points, Math.max(0, details?.rate ?? 0), now);
  }

  #withNow(id, points, value, now) {
    const seen = (this.#seen.get(id) ?? []).filter(([time]) => time > now - KEPT_MS && time < now);
    if (Number.isFinite(value)) seen.push([now, value]);
    this.#seen.set(id, seen);
    if (!points.length) return seen;
    const newest = points.at(-1)[0];
    // What the node has not sampled yet, we have seen.
    return [...points, ...seen.filter(([time]) => time > newest)];
  }
}

/** Oldest first. */
function samples(details) {
  return [...(details?.samples ?? [])].reverse();
}
