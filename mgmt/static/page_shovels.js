// Shovels: how they are, the form that makes one, and the one that moves messages of a queue.

import * as api from "./api.js";
import { nodeLink } from "./cells.js";
import { figure, vhostColumn, words } from "./columns.js";
import { ask } from "./deleting.js";
import { el, folded, section } from "./dom.js";
import { Form } from "./forms.js";
import { failed, said } from "./notices.js";
import { session } from "./session.js";
import { DataTable } from "./table.js";

const TONES = { running: "good", starting: "plain", terminated: "bad" };
const PREFETCH = "1000";

export function shovelsPage() {
  const table = new DataTable({
    id: "shovels",
    caption: "Shovels",
    brief: true,
    empty: "No shovels.",
    key: (row) => `${row.vhost} ${row.name}`,
    load: () => api.get("shovels", { vhost: session.vhost }),
    columns: [
      words("name", "Name"),
      vhostColumn(),
      words("state", "State", { cell: stateBadge }),
      { id: "source", label: "Source", wrap: true, cell: (row) => end(row, "src") },
      { id: "destination", label: "Destination", wrap: true, cell: (row) => end(row, "dest") },
      figure("messages_moved", "Moved"),
      figure("messages_pending", "Pending"),
      words("node", "Node", { wrap: true, cell: (row) => nodeLink(row.node) }),
      {
        id: "reason",
        label: "What went wrong",
        wrap: true,
        cell: (row) => row.reason ?? row.waiting_for ?? null,
      },
    ],
    actions: session.isPolicymaker
      ? (row) => [
          { label: "Restart", name: `Restart shovel ${row.name}`, act: restart },
          { label: "Delete", name: `Delete shovel ${row.name}`, act: remove, tone: "danger" },
        ]
      : undefined,
  });

  async function restart({ vhost, name }) {
    try {
      await api.remove(api.path("shovels", "vhost", vhost, name, "restart"));
    } catch (problem) {
      failed(problem);
      return;
    }
    said(`The shovel ${name} is restarted.`);
    await table.refresh();
  }

  async function remove({ vhost, name }) {
    const act = () => api.remove(api.path("shovels", "vhost", vhost, name));
    const deleted = await ask({
      title: `Delete the shovel ${name}?`,
      text: `It moves nothing any more. Messages that it has not moved stay in their queue.`,
      label: "Delete",
      done: `The shovel ${name} is deleted.`,
      act,
    });
    if (deleted) await table.refresh();
  }

  const form = session.isPolicymaker
    ? folded("Set a shovel", shovelForm(() => table.refresh()).element)
    : null;
  return {
    title: "Shovels",
    call: "shovels",
    element: el("div", { class: "page" }, section("Shovels", table.element, form)),
    refresh: () => table.refresh(),
  };
}

function stateBadge({ state }) {
  return { text: state, tone: TONES[state] ?? "plain" };
}

/** Queue or exchange at one end, and which broker it is while the shovel is connected. */
function end(row, side) {
  // Of a parameter that cannot be understood neither end is known.
  if ((row.src_queue ?? row.src_exchange) === undefined) return null;
  const name = row[`${side}_queue`] ?? row[`${side}_exchange`] ?? "as it came";
  const uri = row[`${side}_uri`];
  return [name || "the default exchange", uri].filter(Boolean).join(" · ");
}

const THIS_CLUSTER = "amqp://user:password@host:5672/vhost; amqp:///vhost is a virtual host here.";

function shovelForm(changed) {
  return new Form({
    label: "Set shovel",
    fields: [
      { name: "name", label: "Name", required: true },
      {
        name: "vhost",
        label: "Virtual host",
        type: "select",
        options: session.vhosts,
        value: session.usualVhost,
      },
      { name: "src-uri", label: "Source URI", required: true, hint: THIS_CLUSTER },
      { name: "from", label: "From a", type: "select", options: ["queue", "exchange"] },
      { name: "source", label: "Name of the source", required: true },
      { name: "src-exchange-key", label: "Binding key", hint: "Of a source that is an exchange." },
      { name: "dest-uri", label: "Destination URI", required: true },
      { name: "to", label: "To a", type: "select", options: ["queue", "exchange"] },
      {
        name: "destination",
        label: "Name of the destination",
        hint: "Without one, messages keep their exchange and routing key.",
      },
      {
        name: "dest-exchange-key",
        label: "Routing key",
        hint: "For a destination that is an exchange; without one, messages keep theirs.",
      },
      { name: "prefetch", label: "Prefetch", type: "number", value: PREFETCH, min: 0 },
      {
        name: "ack-mode",
        label: "Acknowledge",
        type: "select",
        options: ["on-confirm", "on-publish", "no-ack"],
      },
      {
        name: "delete-after",
        label: "Delete after",
        value: "never",
        hint: "never, queue-length, or a number of messages.",
      },
      { name: "delay", label: "Reconnect delay (s)", type: "number", value: "5", min: 0 },
      { name: "headers", label: "Add headers that say where messages came through", type: "checkbox" },
    ],
    submit: async (values) => {
      const { name, vhost } = values;
      await api.put(api.path("parameters", "shovel", vhost, name), { value: asParameter(values) });
      await changed();
      return `The shovel ${name} is set.`;
    },
  });
}

function asParameter(values) {
  const after = values["delete-after"];
  const value = {
    "src-uri": values["src-uri"],
    [`src-${values.from}`]: values.source,
    "dest-uri": values["dest-uri"],
    "src-prefetch-count": Number(values.prefetch),
    "ack-mode": values["ack-mode"],
    "src-delete-after": /^\d+$/.test(after) ? Number(after) : after,
    "reconnect-delay": Number(values.delay),
    "dest-add-forward-headers": values.headers,
  };
  if (values.from === "exchange") value["src-exchange-key"] = values["src-exchange-key"];
  if (values.destination) value[`dest-${values.to}`] = values.destination;
  if (values["dest-exchange-key"]) value["dest-exchange-key"] = values["dest-exchange-key"];
  return value;
}

/** Moves what is in a queue now to another queue of its virtual host; `copies` it from a stream. */
export function moveMessagesForm({ vhost, name, copies }) {
  const uri = `amqp:///${encodeURIComponent(vhost)}`;
  return new Form({
    label: copies ? "Copy messages" : "Move messages",
    fields: [
      {
        name: "destination",
        label: "To queue",
        required: true,
        hint: "It is made, durable, if it is not there.",
      },
    ],
    submit: async ({ destination }) => {
      const value = {
        "src-uri": uri,
        "src-protocol": "amqp091",
        "src-queue": name,
        "src-prefetch-count": Number(PREFETCH),
        "src-delete-after": "queue-length",
        "src-consumer-args": copies ? { "x-stream-offset": "first" } : {},
        "dest-uri": uri,
        "dest-protocol": "amqp091",
        "dest-queue": destination,
        "dest-add-forward-headers": false,
        "ack-mode": "on-confirm",
      };
      await api.put(api.path("parameters", "shovel", vhost, `Move from ${name}`), { value });
      return `What is in ${name} is being ${copies ? "copied" : "moved"} to ${destination}.`;
    },
  });
}
