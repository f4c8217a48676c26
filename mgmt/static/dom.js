// Makes elements. Text only ever becomes text nodes: nothing here parses HTML, so names of queues
// and bodies of messages can hold anything.

const SVG = "http://www.w3.org/2000/svg";
// Set as properties: as attributes they would only be the values to begin with.
const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "hidden", "open"]);

export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    } else if (PROPERTIES.has(name) && name in node) {
      node[name] = value;
    } else if (value === true) {
      node.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, value);
    }
  }
  return node;
}

/** Sets a text where it differs: what has not changed keeps its selection. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function button(label, act, attributes = {}) {
  return el("button", { type: "button", on: { click: act }, ...attributes }, label);
}

let ids = 0;
export function freshId(stem) {
  ids += 1;
  return `${stem}-${ids}`;
}

/** A part of a page under a heading. */
export function section(title, ...children) {
  const id = freshId("part");
  return el(
    "section",
    { class: "box", "aria-labelledby": id },
    el("h2", { id }, title),
    ...children,
  );
}

/** A part that is folded until somebody wants it. */
export function folded(title, ...children) {
  return el(
    "details",
    { class: "box folded" },
    el("summary", {}, el("h2", {}, title)),
    el("div", { class: "folded-body" }, ...children),
  );
}
