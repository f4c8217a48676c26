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
const WIDTH = 360;
const HEIGHT = 240;
const CENTRE = [WIDTH / 2, HEIGHT / 2];
const RADIUS = 74;
const NODE = 19;
// Letters of a name that fit beside a member, and above or below one.
const BESIDE_MAX = 9;
const ALONE_MAX = 24;

/** The parts by which names differ: before the @, or the host without the domain all share. */
export function shortNames(names) {
  const parts = names.map((name) => name.split("@"));
  if (names.length < 2 || parts.some((part) => part.length !== 2)) return names;
  const alike = (at) => new Set(parts.map((part) => part[at])).size === 1;
  if (alike(1)) return parts.map(([name]) => name);
  if (!alike(0)) return names;
  const domains = parts.map(([, host]) => host.replace(/^[^.]*/, ""));
  if (new Set(domains).size > 1) return parts.map(([, host]) => host);
  const hosts = parts.map(([, host]) => host.replace(/\..*/, ""));
  return new Set(hosts).size === hosts.length ? hosts : parts.map(([, host]) => host);
}

/** Names differ at their ends as often as at their beginnings. */
function cut(name, most) {
  if (name.length <= most) return name;
  const kept = most - 1;
  return `${name.slice(0, Math.ceil(kept / 2))}…${name.slice(name.length - Math.floor(kept / 2))}`;
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
    const radius = members.length > 1 ? RADIUS : 0;
    members.forEach((member, at) => parts.push(drawn(member, names[at], places[at], radius)));
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

function drawn({ node, state }, name, angle, radius) {
  const standing = STANDINGS[state] ?? { mark: "?", tone: "plain", label: state };
  const [x, y] = at(angle, radius);
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
    svg("text", { class: "ring-name", ...label }, cut(name, beside ? BESIDE_MAX : ALONE_MAX)),
  );
}
