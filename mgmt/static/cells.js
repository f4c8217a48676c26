// What stands in a cell, described as data, so that a refresh can tell whether it changed.
//
// A description is a text, a number, null (nothing known), `{text, href, tone, title}` with a link
// or a badge, `{table}` with names and values, or a list of these.

import { el } from "./dom.js";
import { session } from "./session.js";

const shown = new WeakMap();

/** Puts the description into the element unless it is there already. */
export function showCell(element, description) {
  const signature = JSON.stringify(description ?? null);
  if (shown.get(element) === signature) return;
  shown.set(element, signature);
  element.replaceChildren(...pieces(description ?? null));
}

function pieces(description) {
  if (description === null || description === "") return [el("span", { class: "nothing" }, "–")];
  if (Array.isArray(description)) {
    if (!description.length) return pieces(null);
    return description.flatMap((one, at) => (at ? [" ", ...pieces(one)] : pieces(one)));
  }
  if (typeof description !== "object") return [String(description)];
  if (description.table) return [tableOf(description.table)];
  const { text, href, tone, title } = description;
  const kind = tone ? `badge ${tone}` : null;
  if (href) return [el("a", { href, class: kind, title }, text)];
  return [el("span", { class: kind, title }, text)];
}

/** Describes arguments, headers or properties as a table; null where there are none. */
export function table(values) {
  return Object.keys(values ?? {}).length ? { table: values } : null;
}

/** Names and values, a table in a table where a value has names itself. */
function tableOf(values) {
  const rows = Object.entries(values).map(([name, value]) =>
    el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, shownValue(value))),
  );
  return el("table", { class: "values", "aria-label": "Names and values" }, el("tbody", {}, rows));
}

function shownValue(value) {
  if (typeof value === "string") return value;
  if (Array.isArray(value) && value.every((one) => typeof one !== "object")) return value.join(", ");
  if (value !== null && typeof value === "object") {
    return Object.keys(value).length ? tableOf(value) : "{}";
  }
  return String(value);
}

/** A list of labelled values; `set` refreshes those it names. */
export function facts(labels) {
  const values = new Map(labels.map((label) => [label, el("dd")]));
  const element = el(
    "dl",
    { class: "facts" },
    labels.map((label) => el("div", {}, el("dt", {}, label), values.get(label))),
  );
  const set = (descriptions) => {
    for (const [label, description] of Object.entries(descriptions)) {
      showCell(values.get(label), description);
    }
  };
  set(Object.fromEntries(labels.map((label) => [label, null])));
  return { element, set };
}

/** A node by its name; only monitors may look at it. */
export function nodeLink(name) {
  return name && session.isMonitor ? { text: name, href: to.node(name) } : (name ?? null);
}

/** Links by which pages point at each other. */
export const to = {
  queue: (vhost, name) => `#/queues/${encodeURIComponent(vhost)}/${encodeURIComponent(name)}`,
  messages: (vhost, name) => `${to.queue(vhost, name)}/messages`,
  exchange: (vhost, name) =>
    `#/exchanges/${encodeURIComponent(vhost)}/${encodeURIComponent(name || "amq.default")}`,
  connection: (name) => `#/connections/${encodeURIComponent(name)}`,
  channel: (name) => `#/channels/${encodeURIComponent(name)}`,
  user: (name) => `#/users/${encodeURIComponent(name)}`,
  vhost: (name) => `#/vhosts/${encodeURIComponent(name)}`,
  life: (vhost, id) => `#/trace/${encodeURIComponent(vhost)}/${encodeURIComponent(id)}`,
  node: (name) => `#/nodes/${encodeURIComponent(name)}`,
};
