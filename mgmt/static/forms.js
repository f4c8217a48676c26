// Forms from lists of fields, and the dialog that asks before something is lost.

import { button, el, freshId, setText } from "./dom.js";
import { reason, said } from "./notices.js";

/**
 * `fields` are `{name, label, type, value, options, hint, required, suggestions}` with the types
 * text, password, number, checkbox, select, choices, textarea, file and table. `submit(values)` may throw:
 * then the form says why. What it answers is said as done.
 */
export class Form {
  #fields = new Map();
  #problem = el("p", { class: "form-problem", role: "alert", hidden: true });

  constructor({ fields, label, submit, tone = "primary", keep = false }) {
    const rows = fields.map((field) => this.#row(field));
    const send = el("button", { type: "submit", class: tone }, label);
    this.element = el(
      "form",
      { class: "form", autocomplete: "off", novalidate: false },
      rows,
      this.#problem,
      el("div", { class: "form-end" }, send),
    );
    this.element.addEventListener("submit", async (event) => {
      event.preventDefault();
      send.disabled = true;
      this.#problem.hidden = true;
      try {
        const done = await submit(this.values());
        if (done) said(done);
        if (!keep) this.reset();
      } catch (problem) {
        setText(this.#problem, reason(problem));
        this.#problem.hidden = false;
      } finally {
        send.disabled = false;
      }
    });
  }

  values() {
    return Object.fromEntries([...this.#fields].map(([name, field]) => [name, field.read()]));
  }

  /** Puts values into fields by name. */
  set(values) {
    for (const [name, value] of Object.entries(values)) this.#fields.get(name)?.write(value);
  }

  reset() {
    for (const field of this.#fields.values()) field.write(field.initial);
  }

  #row(field) {
    const control = (GROUPS[field.type] ?? simpleControl)(field);
    this.#fields.set(field.name, {
      ...control,
      initial:
        field.value ??
        (field.type === "checkbox" ? false : field.type === "table" ? {} : control.read()),
    });
    if (field.value !== undefined) control.write(field.value);
    const hint = field.hint
      ? el("small", { class: "hint", id: freshId("hint") }, field.hint)
      : null;
    if (hint && control.input) control.input.setAttribute("aria-describedby", hint.id);
    if (field.type === "checkbox")
      return el(
        "div",
        { class: "field" },
        el("label", { class: "check" }, control.input, ` ${field.label}`),
        hint,
      );
    if (field.type in GROUPS) {
      return el(
        "fieldset",
        { class: "field" },
        el("legend", {}, field.label),
        control.element,
        hint,
      );
    }
    const id = freshId("field");
    control.input.id = id;
    return el(
      "div",
      { class: "field" },
      el("label", { for: id }, field.label),
      control.input,
      hint,
    );
  }
}

function simpleControl({ name, type = "text", options, required, placeholder, min }) {
  const common = { name, required };
  let input;
  if (type === "select") {
    input = el(
      "select",
      common,
      (options ?? []).map((option) =>
        el("option", { value: option.value ?? option }, option.label ?? option),
      ),
    );
  } else if (type === "textarea") {
    input = el("textarea", { ...common, rows: 4, spellcheck: "false" });
  } else {
    const autocomplete = type === "password" ? "new-password" : "off";
    input = el("input", { ...common, type, placeholder, min, autocomplete, spellcheck: "false" });
  }
  if (type === "checkbox") {
    return { input, read: () => input.checked, write: (value) => (input.checked = value) };
  }
  if (type === "file") {
    return { input, read: () => input.files?.[0] ?? null, write: () => (input.value = "") };
  }
  return { input, read: () => input.value, write: (value) => (input.value = value) };
}

/** Boxes to tick, one for each of `options`; its value is the list of those that are. */
function choicesControl({ options }) {
  const element = el("div", { class: "choices" });
  const boxes = new Map();
  const offer = ({ value, title }) => {
    const box = el("input", { type: "checkbox" });
    boxes.set(value, box);
    element.append(el("label", { class: "check", title }, box, ` ${value}`));
    return box;
  };
  options.forEach(offer);
  return {
    element,
    read: () => [...boxes].filter(([, box]) => box.checked).map(([value]) => value),
    write: (values) => {
      for (const box of boxes.values()) box.checked = false;
      // What was set elsewhere may be none of those offered.
      for (const value of values) (boxes.get(value) ?? offer({ value })).checked = true;
    },
  };
}

const KINDS = ["Text", "Number", "Yes/no", "JSON"];

/** A table of names and values, each value of a kind; `suggestions` add a name by a click. */
function tableControl({ label, suggestions = [] }) {
  const rows = el("div", { class: "pairs" });
  const add = (name = "", value = "") => {
    const part = (what) => `${label}: ${what}`;
    const key = el("input", {
      type: "text",
      "aria-label": part("name"),
      placeholder: "name",
      spellcheck: "false",
      value: name,
    });
    const text = el("input", {
      type: "text",
      "aria-label": part("value"),
      placeholder: "value",
      spellcheck: "false",
      value: shownValue(value),
    });
    const kind = el(
      "select",
      { "aria-label": part("kind of value") },
      KINDS.map((one) => el("option", {}, one)),
    );
    kind.value = kindOf(value);
    const row = el("div", { class: "pair" }, key, text, kind);
    row.append(
      button("Remove", () => row.remove(), {
        class: "small quiet",
        "aria-label": part("remove this entry"),
      }),
    );
    row.read = () => [key.value, readValue(text.value, kind.value, key.value)];
    rows.append(row);
    return text;
  };
  const chips = suggestions.map((one) =>
    button(one.label ?? one.key, () => add(one.key, one.value ?? "").focus(), {
      class: "chip",
      title: one.title ?? one.key,
    }),
  );
  const more = button("Add entry", () => add().previousElementSibling.focus(), { class: "small" });
  return {
    element: el("div", {}, rows, el("div", { class: "chips" }, more, chips)),
    read: () =>
      Object.fromEntries(
        [...rows.children].map((row) => row.read()).filter(([name]) => name !== ""),
      ),
    write: (table) => {
      rows.replaceChildren();
      for (const [name, value] of Object.entries(table)) add(name, value);
    },
  };
}

function kindOf(value) {
  if (typeof value === "number") return "Number";
  if (typeof value === "boolean") return "Yes/no";
  return typeof value === "string" ? "Text" : "JSON";
}

function shownValue(value) {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function readValue(text, kind, name) {
  if (kind === "Text") return text;
  if (kind === "Yes/no") return ["true", "yes", "1"].includes(text.trim().toLowerCase());
  if (kind === "JSON") {
    try {
      return JSON.parse(text);
    } catch {
      throw new Error(`The value of "${name}" is not JSON.`);
    }
  }
  const number = Number(text);
  if (text.trim() === "" || !Number.isFinite(number))
    throw new Error(`The value of "${name}" is no number.`);
  return number;
}

/** Fields of several controls, which have a legend instead of a label. */
const GROUPS = { table: tableControl, choices: choicesControl };

/** Asks before something that cannot be undone; answers whether it may be. */
export function confirmed({ title, text, label, tone = "danger" }) {
  return new Promise((resolve) => {
    const id = freshId("dialog");
    const no = el("button", { value: "no" }, "Cancel");
    const dialog = el(
      "dialog",
      { "aria-labelledby": id },
      el(
        "form",
        { method: "dialog" },
        el("h2", { id }, title),
        el("p", {}, text),
        el("div", { class: "form-end" }, no, el("button", { value: "yes", class: tone }, label)),
      ),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
    // What Enter does at once should be harmless.
    no.focus();
  });
}
