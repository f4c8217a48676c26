// The delayed messages of an exchange: which are next, and what can be done to one of them.

import * as api from "./api.js";
import { ask } from "./deleting.js";
import { section } from "./dom.js";
import { bytes, count, duration, moment } from "./format.js";
import { said } from "./notices.js";
import { DataTable } from "./table.js";

const SHOWN = 50;

/** `where` is the path of the exchange; `changed` is called when a message is gone. */
export class DelayedMessages {
  #where;
  #changed;
  #table;

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
    this.element = section("Delayed messages", this.#table.element);
    this.element.hidden = true;
  }

  /** `row` is what the node says of the exchange. */
  async refresh(row) {
    this.element.hidden = row.messages_delayed === undefined;
    if (this.element.hidden) return;
    const found = await api.get(this.#where, { query: { count: SHOWN } });
    this.#table.showAll(found.items);
  }

  async #send(row) {
    await api.post(`${this.#where}/${api.path(row.id)}/send`);
    said("The message is on its way.");
    this.#changed();
  }

  async #cancel(row) {
    const done = await ask({
      title: "Cancel this message?",
      text: `The message with the routing key "${row.routing_key}" is dropped and reaches no queue.`,
      label: "Cancel message",
      done: "The message is cancelled.",
      act: () => api.remove(`${this.#where}/${api.path(row.id)}`),
    });
    if (done) this.#changed();
  }
}

/** How many messages wait, for the list of facts; null for an exchange of another type. */
export function delayedCount(row) {
  return row.messages_delayed === undefined ? null : count(row.messages_delayed);
}
