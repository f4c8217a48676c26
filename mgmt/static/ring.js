// Draws the ring of a mirrored queue: who hands messages on to whom, in their order, and how each
// member is. Shapes and letters tell the states apart, colours only help.

import { el, svg } from "./dom.js";

export const STANDINGS = {
  leader: { mark: "L", tone: "good", label: "leader", told: "leads the queue" },
  in_sync: { mark: "✓", tone: "good", label: "in sync", told: "has all messages" },
  syncing: { mark: "↻", tone: "warn", label: "syncing", told: "is being sent what it lacks" },
  out_of_sync: { mark: "!", tone: "warn", label: "not in sync", told: "lacks older messages" },
  joining: { mark: "+", tone: "plain", label: "joining", told: "is on its way in" },
  dead: { mark: "×", tone: "bad", label: "dead", told: "is gone; its last messages go round" },
};
const WIDTH = 340;
const HEIGHT = 250;
const CENTRE = [WIDTH / 2, HEIGHT / 2 - 8];
const RADIUS = 78;
const NODE = 19;
const LABEL_MAX = 16;

/** The parts by which names differ, cut to what fits. */
export function shortNames(names) {
  const parts = names.map((name) => name.split("@"));
  const alike = (at) => new Set(parts.map((part) => part[at])).size === 1;
  const one = names.length < 2;
  return parts.map((part, at) => {
    let name = names[at];
    if (part.length === 2 && (one || alike(1))) name = part[0];
    else if (part.length === 2 && alike(0)) name = part[1];
    return name.length > LABEL_MAX ? `${name.slice(0, LABEL_MAX - 1)}…` : name;
  });
}

/** The ring in words, for those who do not see it. */
export function ringInWords(members) {
  if (!members.length) return "The ring is empty.";
  const told = members.map(({ node, state }) => `${node}, ${STANDINGS[state]?.label ?? state}`);
  return `Ring of the copies, each hands on to the next: ${told.join("; ")}; and back to the first.`;
}

export class Ring {
  #drawing = svg("svg", { class: "ring", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  #known = "";
  element = el("figure", { class: "ring-figure" }, this.#drawing);

  /** `members` are `{node, state}` in the order of the ring. */
  update(members) {
    const wanted = JSON.stringify(members);
    if (wanted === this.#known) return;
    this.#known = wanted;
    this.#drawing.setAttribute("aria-label", ringInWords(members));
    const names = shortNames(members.map(({ node }) => node));
    const places = members.map((_, at) => (at / members.length) * 2 * Math.PI - Math.PI / 2);
    const parts = [];
    if (members.length > 1) {
      members.forEach((member, at) => {
        const next = (at + 1) % members.length;
        const until = places[next] + (next === 0 ? 2 * Math.PI : 0);
        parts.push(...arrow(places[at], until, isGone(member) || isGone(members[next])));
      });
    }
    members.forEach((member, at) => parts.push(drawn(member, names[at], places[at])));
    this.#drawing.replaceChildren(...parts);
  }
}

function isGone({ state }) {
  return state === "dead" || state === "joining";
}

function at(angle, radius = RADIUS) {
  return [CENTRE[0] + radius * Math.cos(angle), CENTRE[1] + radius * Math.sin(angle)];
}

function point([x, y]) {
  return `${x.toFixed(1)} ${y.toFixed(1)}`;
}

/** Along the circle, from one member to the next. */
function arrow(from, until, gone) {
  const gap = (NODE + 5) / RADIUS;
  const [start, end] = [from + gap, until - gap - 0.07];
  const large = end - start > Math.PI ? 1 : 0;
  const path = `M${point(at(start))}A${RADIUS} ${RADIUS} 0 ${large} 1 ${point(at(end))}`;
  const tip = at(until - gap + 0.04);
  const sides = [at(end, RADIUS - 5), at(end, RADIUS + 5)];
  const kind = gone ? "ring-way gone" : "ring-way";
  return [
    svg("path", { class: kind, d: path }),
    svg("polygon", { class: "ring-tip", points: [tip, ...sides].map(point).join(" ") }),
  ];
}

function drawn({ node, state }, name, angle) {
  const standing = STANDINGS[state] ?? { mark: "?", tone: "plain", label: state };
  const [x, y] = at(angle);
  const right = Math.cos(angle);
  // Beside the ring where there is room, else above or below.
  const beside = Math.abs(right) > 0.3;
  const label = beside
    ? { x: x + Math.sign(right) * (NODE + 6), y: y + 4, "text-anchor": right > 0 ? "start" : "end" }
    : { x, y: y + (Math.sin(angle) > 0 ? NODE + 16 : -NODE - 8), "text-anchor": "middle" };
  return svg(
    "g",
    { class: `ring-member ${standing.tone} ${state}` },
    svg("title", {}, `${node}: ${standing.label}`),
    svg("circle", { cx: x, cy: y, r: NODE }),
    state === "leader" ? svg("circle", { class: "crown", cx: x, cy: y, r: NODE - 4 }) : null,
    svg("text", { class: "ring-mark", x, y: y + 6, "text-anchor": "middle" }, standing.mark),
    svg("text", { class: "ring-name", ...label }, name),
  );
}
