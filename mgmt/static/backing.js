// Draws the states of a queue's messages: from the tail, where they come in, to the head, where
// they leave. q1 and q4 are memory, delta is disk, q2 and q3 are between.

import { el, setText } from "./dom.js";
import { count } from "./format.js";

const STATES = [
  ["q1", "q1", "in memory, newest"],
  ["q2", "q2", "memory, body on disk"],
  ["delta", "delta", "on disk"],
  ["q3", "q3", "memory, body on disk"],
  ["q4", "q4", "in memory, next to leave"],
];

export class BackingBar {
  #segments = new Map();
  #bar = el("div", { class: "states", role: "img" });
  #keys = el("ul", { class: "states-keys" });
  #note = el("p", { class: "hint" });

  constructor() {
    for (const [id, label, what] of STATES) {
      const segment = el("div", { class: `state state-${id}` });
      const number = el("b");
      this.#bar.append(segment);
      this.#keys.append(
        el(
          "li",
          {},
          el("span", { class: `state-key state-${id}`, "aria-hidden": "true" }),
          el("span", {}, label),
          number,
          el("small", {}, what),
        ),
      );
      this.#segments.set(id, { segment, number });
    }
    const ends = el(
      "div",
      { class: "states-ends" },
      el("span", {}, "tail ← new messages"),
      el("span", {}, "head → to consumers"),
    );
    this.element = el("div", {}, ends, this.#bar, this.#keys, this.#note);
  }

  update(status, unacked) {
    // The node tells delta as ["delta", start, count, 0, end].
    const counts = STATES.map(([id]) => (id === "delta" ? status.delta?.[2] : status[id]) ?? 0);
    const total = counts.reduce((sum, one) => sum + one, 0);
    STATES.forEach(([id], at) => {
      const { segment, number } = this.#segments.get(id);
      // A share of one in a million should still be seen.
      segment.style.flex = `${total ? counts[at] / total : 0} 0 ${counts[at] ? 6 : 0}px`;
      segment.hidden = !counts[at];
      setText(number, count(counts[at]));
    });
    const told = STATES.map(([, label], at) => `${label} ${count(counts[at])}`).join(", ");
    this.#bar.setAttribute("aria-label", `Messages from tail to head: ${told}`);
    this.#bar.classList.toggle("none", !total);
    const target =
      status.target_ram_count === "infinity" ? "any number" : count(status.target_ram_count);
    setText(
      this.#note,
      `Mode ${status.mode}; may keep ${target} of them in memory; ${count(unacked)} delivered and not yet acknowledged are not in the bar.`,
    );
  }
}
