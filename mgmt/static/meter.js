// A bar of how much of something is used.

import { el, setText } from "./dom.js";

const NEARLY = 0.85;

export class Meter {
  #value = el("b", {}, "–");
  #fill = el("div", { class: "meter-fill" });
  #bar = el("div", { class: "meter-bar", role: "meter", "aria-valuemin": 0 });
  #format;
  #least;

  /** `wanted: "least"`: the limit is what must be left, not what may be used. */
  constructor(label, format, { wanted = "most" } = {}) {
    this.#format = format;
    this.#least = wanted === "least";
    this.#bar.setAttribute("aria-label", label);
    this.#bar.append(this.#fill);
    this.element = el(
      "div",
      { class: "meter" },
      el("div", { class: "meter-text" }, el("span", {}, label), this.#value),
      this.#bar,
    );
  }

  update(value, limit, alarm = false) {
    const known = Number.isFinite(value) && Number.isFinite(limit) && limit > 0;
    // Of what must be left, ten times the limit is plenty.
    const top = this.#least ? limit * 10 : limit;
    const share = known ? Math.min(1, value / top) : 0;
    const text = known
      ? `${this.#format(value)} ${this.#least ? "(at least" : "of"} ${this.#format(limit)}${this.#least ? ")" : ""}`
      : this.#format(value);
    setText(this.#value, text);
    this.#fill.style.width = `${share * 100}%`;
    this.#fill.classList.toggle("bad", alarm);
    this.#fill.classList.toggle("warn", !alarm && !this.#least && share > NEARLY);
    this.#bar.setAttribute("aria-valuemax", known ? top : 1);
    this.#bar.setAttribute("aria-valuenow", known ? Math.min(value, top) : 0);
    this.#bar.setAttribute("aria-valuetext", text + (alarm ? ", alarm" : ""));
  }
}
