// The lives of messages: one message by its id, what is recorded, and the rules that say so.

import * as api from "./api.js";
import { nodeLink, to } from "./cells.js";
import { figure, octets, words } from "./columns.js";
import { ask } from "./deleting.js";
import { el, folded, section, setText } from "./dom.js";
import { Form } from "./forms.js";
import { pairs } from "./format.js";
import { go } from "./router.js";
import { session } from "./session.js";
import { DataTable } from "./table.js";

const COMPONENT = "trace";
const TONES = {
  acknowledged: "good",
  consumed: "good",
  rejected: "bad",
  expired: "bad",
  dropped: "bad",
  refused: "bad",
  returned: "bad",
  unroutable: "bad",
  returned_too_often: "bad",
  purged: "bad",
  queue_deleted: "bad",
};

function badge(text) {
  return { text: text.replaceAll("_", " "), tone: TONES[text] ?? "plain" };
}

export function tracePage() {
  const vhost = session.usualVhost;
  let known = { rules: [], nodes: {}, messages: [] };
  const find = new Form({
    label: "Show",
    fields: [
      {
        name: "message",
        label: "Message id",
        required: true,
        hint: "The property message_id, or else correlation_id.",
      },
    ],
    submit: ({ message }) => go(to.life(vhost, message)),
  });
  const messages = new DataTable({
    id: "trace-messages",
    caption: "Messages followed",
    brief: true,
    empty: "No message is followed.",
    key: (row) => row.id,
    load: () => known.messages.map((id) => ({ id })),
    columns: [
      words("id", "The newest first", {
        sort: undefined,
        cell: (row) => ({ text: row.id, href: to.life(vhost, row.id) }),
      }),
    ],
  });
  const nodes = new DataTable({
    id: "trace-nodes",
    caption: "Counts of nodes",
    brief: true,
    key: (row) => row.node,
    load: () => Object.entries(known.nodes).map(([node, counts]) => ({ node, ...counts })),
    columns: [
      words("node", "Node", { cell: (row) => nodeLink(row.node) }),
      figure("recorded", "Records"),
      figure("followed", "Messages followed"),
      figure("passed_over", "Too many"),
      figure("nameless", "Without an id"),
      figure("lost", "Records lost"),
      figure("too_slow", "Filters too slow"),
      octets("file_bytes", "On disk"),
      octets("file_bytes_max", "At most"),
    ],
  });
  const rules = rulesTable(vhost, () => known.rules, refresh);
  const form = session.isPolicymaker ? folded("Set a rule", ruleForm(vhost, refresh).element) : null;
  const element = el(
    "div",
    { class: "page" },
    section("Find a message", find.element),
    section("Rules", rules.element, form),
    section("What is recorded", nodes.element),
    section("Messages", messages.element),
  );

  async function refresh() {
    known = await api.get(api.path("trace", vhost));
    await Promise.all([messages, nodes, rules].map((table) => table.refresh()));
  }

  return { title: "Lives of messages", vhost, call: api.path("trace", vhost), element, refresh };
}

function rulesTable(vhost, load, changed) {
  return new DataTable({
    id: "trace-rules",
    caption: "Rules",
    brief: true,
    empty: "No rules: nothing is recorded.",
    key: (row) => row.name,
    load,
    columns: [
      words("name", "Name"),
      words("queue", "Queue"),
      words("user", "User"),
      words("filter", "Filter"),
      { id: "one-in", label: "One in", numeric: true, cell: (row) => row["one-in"] ?? 1 },
    ],
    actions: session.isPolicymaker
      ? (row) => [
          { label: "Delete", name: `Delete rule ${row.name}`, act: remove, tone: "danger" },
        ]
      : undefined,
  });

  async function remove({ name }) {
    const deleted = await ask({
      title: `Delete the rule ${name}?`,
      text: "What is recorded stays. Without any rule, nothing more is recorded.",
      label: "Delete",
      done: `The rule ${name} is deleted.`,
      act: () => api.remove(api.path("parameters", COMPONENT, vhost, name)),
    });
    if (deleted) await changed();
  }
}

function ruleForm(vhost, changed) {
  return new Form({
    label: "Set rule",
    fields: [
      { name: "name", label: "Name", required: true },
      { name: "queue", label: "Queue", hint: "A regular expression; without one, all queues." },
      { name: "user", label: "User", hint: "Who publishes; without one, everybody." },
      {
        name: "filter",
        label: "Filter",
        hint: "Such as headers.tenant = 'a' and routing_key like 'orders.*'.",
      },
      { name: "one-in", label: "One in", type: "number", value: "1", min: 1 },
    ],
    submit: async ({ name, ...given }) => {
      const value = Object.fromEntries(Object.entries(given).filter(([, text]) => text !== ""));
      if ("one-in" in value) value["one-in"] = Number(value["one-in"]);
      await api.put(api.path("parameters", COMPONENT, vhost, name), { value });
      await changed();
      return `The rule ${name} is set.`;
    },
  });
}

/** One message. */
export function lifePage({ vhost, message }) {
  const path = api.path("trace", vhost, message);
  let life = { records: [], queues: {} };
  const notes = el("p", { class: "empty", role: "status" });
  const queues = new DataTable({
    id: "life-queues",
    caption: "Queues of the message",
    brief: true,
    empty: "In no queue.",
    key: (row) => row.queue,
    load: () => Object.entries(life.queues).map(([queue, state]) => ({ queue, state })),
    columns: [
      words("queue", "Queue", {
        cell: (row) => ({ text: row.queue, href: to.queue(vhost, row.queue) }),
      }),
      words("state", "State", { cell: (row) => badge(row.state) }),
    ],
  });
  const records = new DataTable({
    id: "life-records",
    caption: "Records of the message",
    brief: true,
    empty: "Nothing was recorded of it.",
    key: (row) => row.key,
    load: () => life.records.map((row, at) => ({ key: String(at), ...row })),
    columns: [
      words("time", "Time", { sort: undefined, cell: (row) => row.time.replace("T", " ") }),
      words("event", "Event", { sort: undefined, cell: (row) => badge(row.event) }),
      words("queue", "Queue", { sort: undefined }),
      { id: "what", label: "More", wrap: true, cell: (row) => pairs(more(row)) },
      words("node", "Node", { sort: undefined, cell: (row) => nodeLink(row.node) }),
    ],
  });
  const element = el(
    "div",
    { class: "page" },
    notes,
    section("Where it is", queues.element),
    section("What happened", records.element),
  );

  async function refresh() {
    life = await api.get(path);
    setText(notes, remarks(life));
    notes.hidden = !notes.textContent;
    await Promise.all([queues.refresh(), records.refresh()]);
  }

  return { title: `Message ${message}`, vhost, call: path, element, refresh };
}

function remarks({ is_whole: isWhole, missing_nodes: missing }) {
  const parts = [];
  if (!isWhole) parts.push("There is more, which is older.");
  if (missing.length) parts.push(`Nodes that could not be asked: ${missing.join(", ")}.`);
  return parts.join(" ");
}

/** What a record says besides its columns. */
function more(row) {
  const told = {};
  if (row.event === "published") {
    told.exchange = row.exchange || "(default)";
    told["routing key"] = row.routing_key;
    told.octets = row.size ?? 0;
  }
  if (row.queues) told.to = row.queues.join(", ");
  if (row.user) told.user = row.user;
  if (row.connection) told.connection = `${row.connection}, channel ${row.channel}`;
  if (row.from_node) told["from node"] = row.from_node;
  if (row.redelivered) told.redelivered = true;
  if (row.no_ack) told["needs no acknowledgement"] = true;
  return told;
}
