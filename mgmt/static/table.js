// A list: filtered, sorted, paged, with columns to choose. Pages come from the node where it offers
// them; a plain list is cut up here. A refresh touches only the cells that changed.

import { ApiFailure } from "./api.js";
import { showCell } from "./cells.js";
import { button, el, setText } from "./dom.js";
import { count } from "./format.js";
import { readAddress, writeAddress } from "./list_address.js";
import { failed } from "./notices.js";
import { prefer, preference } from "./prefs.js";

const SIZES = [20, 50, 100, 500];
const TYPING_MS = 250;

export class DataTable {
  #options;
  #columns;
  #chosen;
  #state;
  #rows = new Map();
  #pages = 1;
  #body = el("tbody");
  #head = el("tr");
  #count = el("span", { class: "list-count" });
  #empty = el("p", { class: "empty", hidden: true });
  #pageText = el("span");
  #steps = {};
  #foot;
  #tools;

  /**
   * `columns` are `{id, label, cell, value, sort, numeric, hidden}`: `cell` describes what is shown
   * of a row (cells.js), `sort` is the node's name for the column, `value` what plain lists are
   * sorted by. Where a column is `narrow`, phones show such columns alone.
   * `load(query)` answers a page of the node or a list. `actions(row)` are `{label, name, act}`,
   * `key` names a row. `brief` leaves the tools out while the list is short. `addressed`: filter,
   * order and page are in the address; one list of a page may be.
   */
  constructor({
    id,
    caption,
    columns,
    load,
    key,
    actions,
    empty = "Nothing here.",
    brief = false,
    addressed = false,
  }) {
    this.#options = { id, caption, load, key, actions, brief, addressed };
    this.#columns = columns;
    const hidden = columns.filter((column) => column.hidden).map((column) => column.id);
    this.#chosen = new Set(preference(`hidden.${id}`, hidden));
    this.#state = {
      page: 1,
      size: preference(`size.${id}`, 50),
      name: "",
      regex: false,
      sort: null,
      reverse: false,
      ...(addressed ? readAddress(columns) : {}),
    };
    setText(this.#empty, empty);
    this.#tools = this.#makeTools();
    this.#foot = this.#makeFoot();
    this.#makeHead();
    const table = el(
      "table",
      {},
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, this.#head),
      this.#body,
    );
    // Focusable, so that a wide table can be scrolled by keys.
    const scroll = el(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      table,
    );
    this.element = el("div", { class: "list" }, this.#tools, scroll, this.#empty, this.#foot);
  }

  async refresh() {
    const { page, size, name, regex, sort, reverse } = this.#state;
    const query = { page, page_size: size, name, use_regex: regex };
    if (sort?.sort) Object.assign(query, { sort: sort.sort, sort_reverse: reverse });
    let answer;
    try {
      answer = await this.#options.load(query);
    } catch (problem) {
      // The list has become shorter.
      if (!(problem instanceof ApiFailure && problem.error === "page_out_of_range") || page === 1)
        throw problem;
      this.#state.page = 1;
      this.#address();
      return this.refresh();
    }
    this.show(Array.isArray(answer) ? this.#cut(answer) : answer);
  }

  /** A whole list, for tables that are filled by their page. */
  showAll(rows) {
    this.#options.load = async () => rows;
    this.show(this.#cut(rows));
  }

  show({ items, page, page_count, filtered_count, total_count }) {
    this.#pages = page_count;
    const wanted = new Map(items.map((row) => [this.#options.key(row), row]));
    for (const [key, tr] of this.#rows) {
      if (!wanted.has(key)) {
        tr.remove();
        this.#rows.delete(key);
      }
    }
    let at = this.#body.firstElementChild;
    for (const [key, row] of wanted) {
      let tr = this.#rows.get(key);
      if (!tr) {
        tr = this.#makeRow();
        this.#rows.set(key, tr);
      }
      this.#fill(tr, row);
      // Moving an element takes the focus from it: only where the order changed.
      if (tr === at) at = at.nextElementSibling;
      else this.#body.insertBefore(tr, at);
    }
    this.#showCount(items.length, page, filtered_count, total_count);
  }

  #showCount(shown, page, filtered, total) {
    const { size, name } = this.#state;
    const first = (page - 1) * size + 1;
    const of = name ? `${count(filtered)} matching of ${count(total)}` : count(total);
    setText(
      this.#count,
      shown ? `${count(first)}–${count(first + shown - 1)} of ${of}` : `0 of ${of}`,
    );
    setText(this.#pageText, `Page ${page} of ${this.#pages}`);
    this.#steps.first.disabled = this.#steps.previous.disabled = page <= 1;
    this.#steps.next.disabled = this.#steps.last.disabled = page >= this.#pages;
    const short = this.#options.brief && total <= SIZES[0] && !name;
    this.#tools.hidden = short;
    this.#foot.hidden = short || !total;
    this.#empty.hidden = shown > 0;
    this.#body.closest(".scroll").hidden = !shown;
  }

  /** A page of a plain list, as the node would cut it. */
  #cut(rows) {
    const { size, name, regex, sort, reverse } = this.#state;
    const fits = matcher(name, regex);
    const found = rows.filter((row) => fits(String(this.#options.key(row))));
    if (sort) found.sort((a, b) => compare(sort.value(a), sort.value(b)) * (reverse ? -1 : 1));
    const pages = Math.max(1, Math.ceil(found.length / size));
    const page = (this.#state.page = Math.min(this.#state.page, pages));
    const items = found.slice((page - 1) * size, page * size);
    return {
      items,
      page,
      page_count: pages,
      filtered_count: found.length,
      total_count: rows.length,
    };
  }

  async #again(change) {
    Object.assign(this.#state, { page: 1 }, change);
    this.#address();
    try {
      await this.refresh();
    } catch (problem) {
      failed(problem);
    }
  }

  #address() {
    if (this.#options.addressed) writeAddress(this.#state);
  }

  #visible() {
    return this.#columns.filter((column) => !this.#chosen.has(column.id));
  }

  #makeHead() {
    const cells = this.#visible().map((column) => {
      const sorted = this.#state.sort === column;
      const order = sorted ? (this.#state.reverse ? "descending" : "ascending") : null;
      const attributes = {
        scope: "col",
        class: this.#kind(column),
        "aria-sort": order,
        title: column.title,
      };
      if (!column.sort && !column.value) return el("th", attributes, column.label);
      const mark = el(
        "span",
        { "aria-hidden": "true", class: "sort-mark" },
        sorted ? (this.#state.reverse ? "▾" : "▴") : "",
      );
      return el(
        "th",
        attributes,
        el(
          "button",
          { type: "button", on: { click: () => this.#sortBy(column) } },
          column.label,
          mark,
        ),
      );
    });
    if (this.#options.actions)
      cells.push(el("th", { scope: "col" }, el("span", { class: "unseen" }, "Actions")));
    this.#head.replaceChildren(...cells);
  }

  /** Its classes: how it is aligned, and whether phones have room for it. */
  #kind(column) {
    const wide = this.#columns.some((one) => one.narrow) && !column.narrow;
    const kinds = [column.numeric && "number", column.wrap && "wrap", wide && "wide"];
    return kinds.filter(Boolean).join(" ") || null;
  }

  #sortBy(column) {
    const again = this.#state.sort === column;
    // Of numbers the large ones are what one looks for.
    const reverse = again ? !this.#state.reverse : Boolean(column.numeric);
    const at = [...this.#head.children].findIndex((th) => th.contains(document.activeElement));
    this.#state = { ...this.#state, sort: column, reverse };
    this.#makeHead();
    this.#head.children[at]?.querySelector("button")?.focus();
    this.#again({});
  }

  #makeRow() {
    const tr = el(
      "tr",
      {},
      this.#visible().map((column) =>
        el("td", { class: this.#kind(column) }),
      ),
    );
    if (this.#options.actions) tr.append(el("td", { class: "actions" }));
    return tr;
  }

  #fill(tr, row) {
    this.#visible().forEach((column, at) => showCell(tr.children[at], column.cell(row)));
    const { actions } = this.#options;
    if (!actions) return;
    const cell = tr.lastElementChild;
    const wanted = actions(row);
    const names = wanted.map(({ name }) => name).join("\n");
    tr.row = row;
    if (cell.dataset.names === names) return;
    cell.dataset.names = names;
    // The row may have changed by the time of the click.
    cell.replaceChildren(
      ...wanted.map(({ label, name, act, tone }) =>
        button(label, () => act(tr.row), { "aria-label": name, class: `small ${tone ?? ""}` }),
      ),
    );
  }

  #makeTools() {
    const { caption, id } = this.#options;
    let typing;
    const { name, regex: isRegex } = this.#state;
    const filter = el("input", {
      type: "search",
      spellcheck: "false",
      autocomplete: "off",
      value: name,
    });
    const regex = el("input", { type: "checkbox", checked: isRegex });
    const apply = () => this.#again({ name: filter.value, regex: regex.checked });
    filter.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(apply, TYPING_MS);
    });
    regex.addEventListener("change", apply);
    const size = el(
      "select",
      {},
      SIZES.map((rows) => el("option", { value: rows }, String(rows))),
    );
    size.value = this.#state.size;
    size.addEventListener("change", () => {
      prefer(`size.${id}`, Number(size.value));
      this.#again({ size: Number(size.value) });
    });
    return el(
      "div",
      { class: "list-tools", role: "search", "aria-label": `Filter ${caption.toLowerCase()}` },
      el("label", {}, "Filter ", filter),
      el("label", { class: "check" }, regex, " Regular expression"),
      el("label", {}, "Rows ", size),
      this.#makeChooser(),
    );
  }

  #makeChooser() {
    const boxes = this.#columns.slice(1).map((column) => {
      const box = el("input", { type: "checkbox", checked: !this.#chosen.has(column.id) });
      box.addEventListener("change", () => {
        if (box.checked) this.#chosen.delete(column.id);
        else this.#chosen.add(column.id);
        prefer(`hidden.${this.#options.id}`, [...this.#chosen]);
        this.#makeHead();
        this.#rows.clear();
        this.#body.replaceChildren();
        this.#again({ page: this.#state.page });
      });
      return el("label", { class: "check" }, box, ` ${column.label}`);
    });
    const chooser = el(
      "details",
      { class: "chooser" },
      el("summary", {}, "Columns"),
      el("div", { class: "chooser-boxes" }, boxes),
    );
    chooser.addEventListener("keydown", (event) => {
      if (event.key === "Escape") chooser.open = false;
    });
    return chooser;
  }

  #makeFoot() {
    const step = (label, page) =>
      button(label, () => this.#again({ page: page() }), { class: "small" });
    this.#steps = {
      first: step("First", () => 1),
      previous: step("Previous", () => this.#state.page - 1),
      next: step("Next", () => this.#state.page + 1),
      last: step("Last", () => this.#pages),
    };
    const { first, previous, next, last } = this.#steps;
    return el(
      "div",
      { class: "list-foot" },
      this.#count,
      el(
        "nav",
        { class: "pager", "aria-label": `Pages of ${this.#options.caption.toLowerCase()}` },
        first,
        previous,
        this.#pageText,
        next,
        last,
      ),
    );
  }
}

function matcher(name, regex) {
  if (!name) return () => true;
  if (!regex) return (text) => text.toLowerCase().includes(name.toLowerCase());
  try {
    const pattern = new RegExp(name, "iu");
    return (text) => pattern.test(text);
  } catch {
    // Half of an expression, while it is typed.
    return () => false;
  }
}

/** Missing values first, as the node sorts them. */
function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return a < b ? -1 : 1;
}
