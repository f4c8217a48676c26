// Which part of the past charts show.

import { el } from "./dom.js";
import { failed } from "./notices.js";
import { prefer, preference } from "./prefs.js";

// Seconds shown, and between two samples: as dense as the node keeps them.
const RANGES = [
  [60, 5, "Last minute"],
  [600, 5, "Last 10 minutes"],
  [3600, 60, "Last hour"],
];
const LONG = [
  [28_800, 600, "Last 8 hours"],
  [86_400, 1800, "Last day"],
];

export class RangeChoice {
  #ranges;
  #chosen;
  /** Called after another range was chosen. */
  changed = async () => {};

  /** `long`: nodes and virtual hosts, of which the node keeps a day; of others it keeps an hour. */
  constructor({ id, long = false }) {
    this.#ranges = long ? [...RANGES, ...LONG] : RANGES;
    const age = preference(`range.${id}`, 600);
    this.#chosen = this.#ranges.find(([ageS]) => ageS === age) ?? this.#ranges[1];
    const choice = el(
      "select",
      {},
      this.#ranges.map(([ageS, , label]) => el("option", { value: ageS }, label)),
    );
    choice.value = this.#chosen[0];
    choice.addEventListener("change", async () => {
      this.#chosen = this.#ranges.find(([ageS]) => ageS === Number(choice.value));
      prefer(`range.${id}`, this.ageS);
      try {
        await this.changed();
      } catch (problem) {
        failed(problem);
      }
    });
    this.element = el("div", { class: "range" }, el("label", {}, "Time shown ", choice));
  }

  get ageS() {
    return this.#chosen[0];
  }

  /** The parameters that ask for samples of this kind. */
  query(kind) {
    return { [`${kind}_age`]: this.#chosen[0], [`${kind}_incr`]: this.#chosen[1] };
  }
}
