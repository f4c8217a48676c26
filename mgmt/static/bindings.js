// Bindings: their lists on the pages of queues and exchanges, and the forms that make them.

import * as api from "./api.js";
import { to } from "./cells.js";
import { ask } from "./deleting.js";
import { Form } from "./forms.js";
import { exchangeName, pairs } from "./format.js";
import { DataTable } from "./table.js";

function source(row) {
  return { text: exchangeName(row.source), href: to.exchange(row.vhost, row.source) };
}

function destination(row) {
  const link = row.destination_type === "queue" ? to.queue : to.exchange;
  return [
    { text: row.destination, href: link(row.vhost, row.destination) },
    { text: row.destination_type, tone: "plain" },
  ];
}

function bindingPath(vhost, exchange, kind, name) {
  return api.path("bindings", vhost, "e", exchange || "amq.default", kind, name || "amq.default");
}

/** `end` is the end of the bindings to show: "source" or "destination". */
export function bindingsTable({ id, caption, end, changed }) {
  const unbind = async (row) => {
    const kind = row.destination_type === "queue" ? "q" : "e";
    const where = `${bindingPath(row.vhost, row.source, kind, row.destination)}/${api.path(row.properties_key)}`;
    const text = `Messages no longer go from ${exchangeName(row.source)} to ${row.destination} by the routing key "${row.routing_key}".`;
    const act = () => api.remove(where);
    if (
      await ask({
        title: "Remove this binding?",
        text,
        label: "Unbind",
        done: "The binding is removed.",
        act,
      })
    )
      changed();
  };
  return new DataTable({
    id,
    caption,
    brief: true,
    empty: end === "source" ? "No bindings." : "Nothing is bound to it.",
    key: (row) => `${row.source} ${row.destination_type} ${row.destination} ${row.properties_key}`,
    columns: [
      end === "source"
        ? { id: "from", label: "From", value: (row) => row.source, cell: source }
        : { id: "to", label: "To", value: (row) => row.destination, cell: destination },
      {
        id: "key",
        label: "Routing key",
        value: (row) => row.routing_key,
        cell: (row) => row.routing_key,
      },
      { id: "arguments", label: "Arguments", wrap: true, cell: (row) => pairs(row.arguments) },
    ],
    // Bindings to the default exchange come with the queue.
    actions: (row) =>
      row.source
        ? [{ label: "Unbind", name: `Unbind ${row.routing_key} from ${row.source}`, act: unbind }]
        : [],
  });
}

const KEY_AND_ARGUMENTS = [
  { name: "key", label: "Routing key" },
  {
    name: "arguments",
    label: "Arguments",
    type: "table",
    suggestions: [{ key: "x-match", value: "all", title: "headers exchanges: all or any" }],
  },
];

/** Binds a queue to an exchange that is named. */
export function bindQueueForm(vhost, queue, changed) {
  return new Form({
    label: "Bind",
    fields: [{ name: "source", label: "From exchange", required: true }, ...KEY_AND_ARGUMENTS],
    submit: async ({ source: exchange, key, arguments: table }) => {
      await api.post(bindingPath(vhost, exchange, "q", queue), {
        routing_key: key,
        arguments: table,
      });
      changed();
      return `The queue is bound to ${exchange}.`;
    },
  });
}

/** Binds something that is named to an exchange. */
export function bindToExchangeForm(vhost, exchange, changed) {
  const kinds = [
    { value: "q", label: "queue" },
    { value: "e", label: "exchange" },
  ];
  return new Form({
    label: "Bind",
    fields: [
      { name: "kind", label: "To", type: "select", options: kinds },
      { name: "destination", label: "Name", required: true },
      ...KEY_AND_ARGUMENTS,
    ],
    submit: async ({ kind, destination: name, key, arguments: table }) => {
      await api.post(bindingPath(vhost, exchange, kind, name), {
        routing_key: key,
        arguments: table,
      });
      changed();
      return `${name} is bound to ${exchangeName(exchange)}.`;
    },
  });
}
