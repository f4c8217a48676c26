// The list of queues, and declaring one.

import * as api from "./api.js";
import { nodeLink, to } from "./cells.js";
import {
  featuresColumn,
  figure,
  octets,
  pace,
  policyColumn,
  vhostColumn,
  words,
} from "./columns.js";
import { el, folded } from "./dom.js";
import { Form } from "./forms.js";
import { session } from "./session.js";
import { DataTable } from "./table.js";

export const QUEUE_ARGUMENTS = [
  { key: "x-message-ttl", value: 60000, title: "milliseconds a message may wait" },
  { key: "x-expires", value: 1800000, title: "milliseconds an unused queue lives" },
  { key: "x-max-length", value: 10000, title: "messages at most" },
  { key: "x-max-length-bytes", value: 1048576, title: "octets at most" },
  {
    key: "x-overflow",
    value: "reject-publish",
    title: "drop-head, reject-publish or reject-publish-dlx",
  },
  { key: "x-dead-letter-exchange", title: "where rejected and expired messages go" },
  { key: "x-dead-letter-routing-key", title: "by which key they go there" },
  { key: "x-max-priority", value: 10, title: "levels of priority" },
  { key: "x-queue-mode", value: "lazy", title: "default or lazy: messages on disk" },
  { key: "x-single-active-consumer", value: true, title: "one consumer at a time" },
  { key: "x-delivery-limit", value: 20, title: "how often a message may come back" },
  {
    key: "x-redelivery-delay",
    value: [1000, 10000, 60000],
    title: "classic queues: how many milliseconds each return waits",
  },
  {
    key: "x-message-deduplication-window",
    value: 10000,
    title: "classic queues: how many message ids are taken once each",
  },
  {
    key: "x-dead-letter-strategy",
    value: "at-least-once",
    title: "quorum queues: at-most-once or at-least-once",
  },
  { key: "x-max-age", value: "7D", title: "streams: how long messages are kept (Y M D h m s)" },
  {
    key: "x-stream-max-segment-size-bytes",
    value: 500000000,
    title: "streams: octets that are removed together",
  },
];

export const QUEUE_TYPES = [
  { value: "", label: "default of the virtual host" },
  { value: "classic", label: "classic" },
  { value: "quorum", label: "quorum" },
  { value: "stream", label: "stream" },
];

export function queueState(row) {
  if (row.idle_since)
    return { text: "idle", tone: "plain", title: `nothing moved since ${row.idle_since}` };
  const tone = { running: "good", down: "bad" }[row.state] ?? "warn";
  return row.state ? { text: row.state, tone } : null;
}

/** The leader, how many mirrors there are besides, and how many of them are not in sync. */
export function whereItIs(row) {
  const mirrors = row.slave_nodes ?? [];
  const shown = [nodeLink(row.node)];
  const followers = (row.members ?? []).filter((node) => node !== row.node);
  if (followers.length) {
    const title = `members: ${row.members.join(", ")}`;
    shown.push({ text: `+${followers.length}`, tone: "plain", title });
  }
  const away = (row.members ?? []).filter((node) => !row.online.includes(node));
  if (away.length) {
    const title = `cannot be reached: ${away.join(", ")}`;
    shown.push({ text: `${away.length} away`, tone: "warn", title });
  }
  if (mirrors.length) {
    shown.push({ text: `+${mirrors.length}`, tone: "plain", title: `mirrors: ${mirrors.join(", ")}` });
  }
  const lacking = mirrors.filter((node) => !row.synchronised_slave_nodes.includes(node));
  if (lacking.length) {
    const title = `not in sync: ${lacking.join(", ")}`;
    shown.push({ text: `${lacking.length} not in sync`, tone: "warn", title });
  }
  return shown;
}

export function queuesPage() {
  const table = new DataTable({
    id: "queues",
    addressed: true,
    caption: "Queues",
    empty: "No queues.",
    key: (row) => `${row.vhost} ${row.name}`,
    load: (query) => api.get("queues", { query, vhost: session.vhost }),
    columns: [
      words("name", "Name", {
        cell: (row) => ({ text: row.name, href: to.queue(row.vhost, row.name) }),
        narrow: true,
      }),
      vhostColumn(),
      featuresColumn,
      policyColumn(),
      words("state", "State", { cell: queueState }),
      words("node", "Node", { cell: whereItIs, hidden: !session.isInCluster, wrap: true }),
      figure("messages_ready", "Ready", "messages_ready", undefined, { narrow: true }),
      figure("messages_unacknowledged", "Unacked", "messages_unacknowledged", undefined, {
        narrow: true,
      }),
      figure("messages", "Total", "messages", undefined, { narrow: true }),
      figure("consumers", "Consumers"),
      pace("publish", "In"),
      pace("deliver_get", "Out"),
      pace("ack", "Ack"),
      figure("persistent", "Persistent", "messages_persistent", undefined, { hidden: true }),
      octets("message_bytes_ready", "Size", "message_bytes_ready", { hidden: true }),
      octets("memory", "Memory", "memory", { hidden: true }),
    ],
  });
  const element = el(
    "div",
    { class: "page" },
    table.element,
    folded("Declare a queue", declareForm(() => table.refresh()).element),
  );
  return { title: "Queues", call: "queues", element, refresh: () => table.refresh() };
}

function declareForm(declared) {
  return new Form({
    label: "Declare queue",
    fields: [
      {
        name: "vhost",
        label: "Virtual host",
        type: "select",
        options: session.vhosts,
        value: session.usualVhost,
      },
      { name: "name", label: "Name", required: true },
      {
        name: "type",
        label: "Type",
        type: "select",
        options: QUEUE_TYPES,
        hint: "A quorum queue or a stream is durable and not auto-delete.",
      },
      { name: "durable", label: "Durable: it survives a restart", type: "checkbox", value: true },
      { name: "auto_delete", label: "Auto-delete: gone with its last consumer", type: "checkbox" },
      { name: "arguments", label: "Arguments", type: "table", suggestions: QUEUE_ARGUMENTS },
    ],
    submit: async ({ vhost, name, type, ...declaration }) => {
      if (type) declaration.arguments = { ...declaration.arguments, "x-queue-type": type };
      await api.put(api.path("queues", vhost, name), declaration);
      await declared();
      return `The queue ${name} is declared.`;
    },
  });
}
