// The delayed messages of an exchange: which are next or found by a filter, and what can be done to
// one of them.

import * as api from "./api.js";
import { ask } from "./deleting.js";
import { el, section, setText } from "./dom.js";
import { bytes, count, duration, moment } from "./format.js";
import { Form } from "./forms.js";
import { failed, said } from "./notices.js";
import { DataTable } from "./table.js";

const SHOWN = 50;

/** `where` is the path of the exchange; `changed` is called when a message is gone. */
export class DelayedMessages {
  #where;
  #changed;
  #table;
  #filter = "";
  #found = [];
  // Counts searches: a later one ends the one before.
  #search = 0;
  #summary = el("p", { class: "got-summary", role: "status" });

  constructor({ where, changed }) {
    this.#where = `${where}/delayed`;
    this.#changed = changed;
    this.#table = new DataTable({
      id: "delayed",
      caption: "Delayed messages",
      brief: true,
      empty: "No messages wait.",
      key: (row) => row.id,
      columns: [
        { id: "due", label: "Due", value: (row) => row.due_at, cell: (row) => moment(row.due_at) },
        { id: "left", label: "In", numeric: true, cell: (row) => duration(row.due_in) },
        { id: "key", label: "Routing key", cell: (row) => row.routing_key },
        { id: "size", label: "Payload", numeric: true, cell: (row) => bytes(row.payload_bytes) },
      ],
      actions: (row) => [
        { label: "Send now", name: `Send ${row.id} now`, act: (one) => this.#send(one) },
        { label: "Cancel", name: `Cancel ${row.id}`, act: (one) => this.#cancel(one) },
      ],
    });
    const form = new Form({
      label: "Find",
      keep: true,
      fields: [{ name: "filter", label: "Message filter", hint: "Empty: those that are due next." }],
      submit: ({ filter }) => this.#find(filter),
    });
    this.element = section("Delayed messages", form.element, this.#summary, this.#table.element);
    this.element.hidden = true;
  }

  /** `row` is what the node says of the exchange. */
  async refresh(row) {
    this.element.hidden = row.messages_delayed === undefined;
    // What a filter has found is not looked for again and again.
    if (this.element.hidden || this.#filter) return;
    await this.#showNext();
  }

  async #showNext() {
    const next = await api.get(this.#where, { query: { count: SHOWN } });
    if (!this.#filter) this.#table.showAll(next.items);
  }

  /** Goes through all messages in the order of publishing, until a page of them is found. */
  async #find(filter) {
    const search = ++this.#search;
    this.#filter = filter;
    this.#found = [];
    setText(this.#summary, "");
    if (!filter) return this.#showNext();
    const next = await this.#look(search, { from: "", looked: 0 });
    // The form is free meanwhile: another search ends this one.
    this.#goOn(search, next).catch(failed);
  }

  async #goOn(search, next) {
    let place = next;
    while (place) place = await this.#look(search, place);
  }

  /** One call of a search; answers the place of the next one, null where it ends. */
  async #look(search, { from, looked }) {
    const left = SHOWN - this.#found.length;
    const query = { order: "published", count: left, filter: this.#filter, from };
    const page = await api.get(this.#where, { query });
    if (search !== this.#search || !this.element.isConnected) return null;
    this.#found.push(...page.items);
    const sum = looked + page.looked_at;
    const [found, among, all] = [this.#found.length, sum, page.total].map(count);
    setText(this.#summary, `Found ${found} among ${among} of ${all} messages.`);
    this.#table.showAll(this.#found);
    const isOver = page.next === null || this.#found.length >= SHOWN;
    return isOver ? null : { from: page.next, looked: sum };
  }

  #left(row) {
    this.#found = this.#found.filter((one) => one.id !== row.id);
    if (this.#filter) this.#table.showAll(this.#found);
    this.#changed();
  }

  async #send(row) {
    await api.post(`${this.#where}/${api.path(row.id)}/send`);
    said("The message is on its way.");
    this.#left(row);
  }

  async #cancel(row) {
    const done = await ask({
      title: "Cancel this message?",
      text: `The message with the routing key "${row.routing_key}" is dropped and reaches no queue.`,
      label: "Cancel message",
      done: "The message is cancelled.",
      act: () => api.remove(`${this.#where}/${api.path(row.id)}`),
    });
    if (done) this.#left(row);
  }
}

/** How many messages wait, for the list of facts; null for an exchange of another type. */
export function delayedCount(row) {
  return row.messages_delayed === undefined ? null : count(row.messages_delayed);
}
