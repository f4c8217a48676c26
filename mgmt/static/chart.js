// A chart of lines over time, drawn as SVG: axes with units, a legend with the values of now, or of
// the time under the pointer or chosen by the arrow keys, and a summary in words for who listens.

import { el, freshId, setText, svg } from "./dom.js";
import { clock } from "./format.js";

const HEIGHT = 190;
const MARGIN = { top: 10, right: 12, bottom: 24, left: 56 };
const TICKS = 4;

export class Chart {
  #title;
  #series;
  #format;
  #binary;
  #plot = svg("svg", { class: "plot", role: "img", height: HEIGHT });
  #legend = new Map();
  #time = el("span", { class: "legend-time" });
  #lines = {};
  #span = [0, 1];
  #cursor = null;

  /**
   * `series` are `{id, label}`; `format` makes a text with its unit of a value. `binary`: the axis
   * has round numbers of KiB and the like.
   */
  constructor({ title, series, format, binary = false }) {
    this.#binary = binary;
    this.#title = title;
    this.#series = series;
    this.#format = format;
    const legend = el("ul", { class: "legend" });
    series.forEach(({ id, label }, at) => {
      const value = el("b", {}, "–");
      this.#legend.set(id, value);
      const swatch = svg("svg", { class: "swatch", viewBox: "0 0 18 6", "aria-hidden": "true" });
      swatch.append(svg("line", { class: `line line-${at}`, x1: 0, y1: 3, x2: 18, y2: 3 }));
      legend.append(el("li", {}, swatch, el("span", {}, label), value));
    });
    const heading = el("figcaption", { id: freshId("chart") }, title);
    const stage = el("div", { class: "stage", tabindex: "0", role: "group" }, this.#plot);
    stage.setAttribute("aria-labelledby", heading.id);
    stage.addEventListener("pointermove", (event) => this.#point(event));
    stage.addEventListener("pointerleave", () => this.#moveCursor(null));
    stage.addEventListener("blur", () => this.#moveCursor(null));
    stage.addEventListener("keydown", (event) => this.#key(event));
    const head = el("div", { class: "chart-head" }, heading, this.#time);
    this.element = el("figure", { class: "chart" }, head, stage, legend);
    new ResizeObserver(() => this.#draw()).observe(stage);
  }

  /** `lines` are lists of `[time, value]` by series; the chart shows `ageS` up to `now`. */
  update(lines, now, ageS) {
    this.#lines = lines;
    this.#span = [now - ageS * 1000, now];
    this.#draw();
    this.#plot.setAttribute("aria-label", this.#summary());
  }

  #visible(id) {
    const line = this.#lines[id] ?? [];
    const first = line.findIndex(([time]) => time >= this.#span[0]);
    return first < 0 ? [] : line.slice(first);
  }

  #draw() {
    const width = Math.max(220, this.#plot.parentElement.clientWidth);
    const right = width - MARGIN.right;
    const bottom = HEIGHT - MARGIN.bottom;
    const highest = Math.max(
      0,
      ...this.#series.flatMap(({ id }) => this.#visible(id).map((p) => p[1])),
    );
    const step = niceStep(highest / TICKS, this.#binary);
    const top = step * Math.max(1, Math.ceil(highest / step));
    const [from, until] = this.#span;
    this.#x = (time) => MARGIN.left + ((time - from) / (until - from)) * (right - MARGIN.left);
    const y = (value) => bottom - (value / top) * (bottom - MARGIN.top);
    this.#plot.setAttribute("width", width);
    this.#plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const parts = [];
    for (let value = 0; value <= top + step / 2; value += step) {
      parts.push(
        svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(value), y2: y(value) }),
      );
      const at = { class: "tick", x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" };
      parts.push(svg("text", at, this.#format(value)));
    }
    const marks = width < 420 ? 2 : 4;
    for (let mark = 0; mark <= marks; mark += 1) {
      const time = from + ((until - from) * mark) / marks;
      const anchor = mark === 0 ? "start" : mark === marks ? "end" : "middle";
      const at = { class: "tick", x: this.#x(time), y: HEIGHT - 6, "text-anchor": anchor };
      parts.push(svg("text", at, clock(time)));
    }
    this.#series.forEach(({ id }, at) => {
      const points = this.#visible(id).map(
        ([time, value]) => `${this.#x(time).toFixed(1)},${y(value).toFixed(1)}`,
      );
      if (!points.length) return;
      parts.push(svg("polyline", { class: `line line-${at}`, points: points.join(" ") }));
      // Where a line has only begun, its end is all one sees of it.
      const [cx, cy] = points.at(-1).split(",");
      parts.push(svg("circle", { class: `dot dot-${at}`, cx, cy, r: 3 }));
    });
    this.#rule = svg("line", { class: "rule", y1: MARGIN.top, y2: bottom });
    this.#plot.replaceChildren(...parts, this.#rule);
    this.#moveCursor(this.#cursor);
  }

  #x = () => 0;
  #rule = null;

  #point(event) {
    const { left } = this.#plot.getBoundingClientRect();
    const [from, until] = this.#span;
    const start = this.#x(from);
    const share = (event.clientX - left - start) / (this.#x(until) - start);
    this.#moveCursor(from + Math.min(1, Math.max(0, share)) * (until - from));
  }

  #key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const [from, until] = this.#span;
    const next = (this.#cursor ?? until) + (step * (until - from)) / 40;
    this.#moveCursor(Math.min(until, Math.max(from, next)));
  }

  /** To the values at a time; null is back to those of now. */
  #moveCursor(time) {
    this.#cursor = time;
    setText(this.#time, time === null ? "" : clock(time));
    if (this.#rule) {
      this.#rule.setAttribute("x1", this.#x(time ?? 0));
      this.#rule.setAttribute("x2", this.#x(time ?? 0));
      this.#rule.setAttribute("visibility", time === null ? "hidden" : "visible");
    }
    for (const { id } of this.#series) {
      const points = this.#visible(id);
      const point = time === null ? points.at(-1) : nearest(points, time);
      setText(this.#legend.get(id), point ? this.#format(point[1]) : "–");
    }
  }

  #summary() {
    const told = this.#series.map(({ id, label }) => {
      const values = this.#visible(id).map(([, value]) => value);
      if (!values.length) return `${label}: nothing yet`;
      const [least, most] = [Math.min(...values), Math.max(...values)].map(this.#format);
      return `${label}: now ${this.#format(values.at(-1))}, between ${least} and ${most}`;
    });
    return `${this.#title}. ${told.join("; ")}.`;
  }
}

function nearest(points, time) {
  let best = null;
  for (const point of points) {
    if (!best || Math.abs(point[0] - time) < Math.abs(best[0] - time)) best = point;
  }
  return best;
}

/** 1, 2 or 5 times a power of ten, not below `least`; a power of two where `binary`. */
function niceStep(least, binary) {
  if (!(least > 0)) return 1;
  if (binary) return 2 ** Math.ceil(Math.log2(least));
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least * 0.999);
}
