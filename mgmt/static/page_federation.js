// Federation: how the links are, the upstreams and their sets, and the form that sets an upstream.

import * as api from "./api.js";
import { nodeLink } from "./cells.js";
import { figure, vhostColumn, words } from "./columns.js";
import { ask } from "./deleting.js";
import { el, folded, section } from "./dom.js";
import { Form } from "./forms.js";
import { pairs } from "./format.js";
import { failed, said } from "./notices.js";
import { session } from "./session.js";
import { DataTable } from "./table.js";

const TONES = { running: "good", starting: "plain", error: "bad", shutdown: "bad" };
const UPSTREAM = "federation-upstream";
const SET = "federation-upstream-set";

export function federationPage() {
  const tables = [];
  const sections = [];
  if (session.isMonitor) {
    const links = linksTable();
    tables.push(links);
    sections.push(section("Federation status", links.element));
  }
  if (session.isPolicymaker) {
    const upstreams = upstreamsTable();
    const sets = setsTable();
    tables.push(upstreams, sets);
    const form = upstreamForm(() => upstreams.refresh());
    sections.push(
      section("Federation upstreams", upstreams.element, folded("Set an upstream", form.element)),
      section("Sets of upstreams", sets.element),
    );
  }
  return {
    title: "Federation",
    call: "federation-links",
    element: el("div", { class: "page" }, sections),
    refresh: () => Promise.all(tables.map((table) => table.refresh())),
  };
}

function linksTable() {
  const table = new DataTable({
    id: "federation-links",
    caption: "Federation links",
    brief: true,
    empty: "No federation links.",
    key: (row) => `${row.vhost} ${row.id} ${row.node}`,
    load: () => api.get("federation-links", { vhost: session.vhost }),
    columns: [
      { id: "what", label: "Gets messages", wrap: true, cell: (row) => `${row.type} ${here(row)}` },
      vhostColumn(),
      words("upstream", "From upstream", { wrap: true, cell: from }),
      words("status", "State", { cell: stateBadge }),
      words("policy", "Policy", { wrap: true }),
      figure("messages_received", "Received"),
      figure("messages_pending", "Pending"),
      words("node", "Node", { wrap: true, cell: (row) => nodeLink(row.node) }),
      {
        id: "error",
        label: "What went wrong",
        wrap: true,
        cell: (row) => row.error ?? row.waiting_for ?? null,
      },
    ],
    actions: session.isPolicymaker
      ? (row) => [{ label: "Restart", name: `Restart link of ${here(row)}`, act: restart }]
      : undefined,
  });

  async function restart(row) {
    const { vhost, id, node } = row;
    try {
      await api.remove(api.path("federation-links", "vhost", vhost, id, node, "restart"));
    } catch (problem) {
      failed(problem);
      return;
    }
    said(`The link of ${here(row)} is restarted.`);
    await table.refresh();
  }

  return table;
}

function here(row) {
  return row[row.type];
}

/** The upstream, and what the messages come from there. */
function from(row) {
  return `${row.upstream}: ${row[`upstream_${row.type}`]} · ${row.uri}`;
}

function stateBadge({ status }) {
  return { text: status, tone: TONES[status] ?? "plain" };
}

function upstreamsTable() {
  return parametersTable({
    component: UPSTREAM,
    caption: "Federation upstreams",
    one: "upstream",
    empty: "No upstreams.",
    columns: [
      { id: "uri", label: "URI", wrap: true, cell: (row) => [row.value.uri].flat().map(withoutSecrets) },
      {
        id: "more",
        label: "More",
        wrap: true,
        cell: ({ value: { uri, ...more } }) => pairs(more),
      },
    ],
  });
}

function setsTable() {
  return parametersTable({
    component: SET,
    caption: "Sets of upstreams",
    one: "set of upstreams",
    empty: "No sets of upstreams but the one that is always there: all.",
    columns: [
      {
        id: "upstreams",
        label: "Upstreams",
        wrap: true,
        cell: (row) => [row.value].flat().map((member) => member.upstream),
      },
    ],
  });
}

function parametersTable({ component, caption, one, empty, columns }) {
  const table = new DataTable({
    id: component,
    caption,
    brief: true,
    empty,
    key: (row) => `${row.vhost} ${row.name}`,
    load: () => api.get(`parameters/${component}`, { vhost: session.vhost }),
    columns: [words("name", "Name"), vhostColumn(), ...columns],
    actions: (row) => [
      { label: "Delete", name: `Delete ${one} ${row.name}`, act: remove, tone: "danger" },
    ],
  });

  async function remove({ vhost, name }) {
    const act = () => api.remove(api.path("parameters", component, vhost, name));
    const deleted = await ask({
      title: `Delete the ${one} ${name}?`,
      text: "Its links end. Messages that wait for them at the upstream stay there.",
      label: "Delete",
      done: `The ${one} ${name} is deleted.`,
      act,
    });
    if (deleted) await table.refresh();
  }

  return table;
}

function withoutSecrets(uri) {
  return uri.replace(/:\/\/[^/]*@/, "://").replace(/\?.*/, "");
}

const A_BROKER = "amqp://user:password@host:5672/vhost; amqp:///vhost is a virtual host here.";

function upstreamForm(changed) {
  return new Form({
    label: "Set upstream",
    fields: [
      { name: "name", label: "Name", required: true },
      {
        name: "vhost",
        label: "Virtual host",
        type: "select",
        options: session.vhosts,
        value: session.usualVhost,
      },
      { name: "uri", label: "URI", required: true, hint: A_BROKER },
      { name: "prefetch-count", label: "Prefetch", type: "number", value: "1000", min: 0 },
      { name: "reconnect-delay", label: "Reconnect delay (s)", type: "number", value: "5", min: 0 },
      {
        name: "ack-mode",
        label: "Acknowledge",
        type: "select",
        options: ["on-confirm", "on-publish", "no-ack"],
      },
      { name: "trust-user-id", label: "Keep user_id of messages", type: "checkbox" },
      { name: "exchange", label: "Exchange there", hint: "Without one, the same name as here." },
      { name: "max-hops", label: "Most hops", type: "number", value: "1", min: 1 },
      {
        name: "expires",
        label: "Expires (ms)",
        type: "number",
        min: 1,
        hint: "How long the queue at the upstream lives while no link is there; for ever without it.",
      },
      {
        name: "message-ttl",
        label: "Message TTL (ms)",
        type: "number",
        min: 0,
        hint: "How long a message waits there; for ever without it.",
      },
      { name: "queue", label: "Queue there", hint: "Without one, the same name as here." },
      { name: "consumer-tag", label: "Consumer tag", hint: "Of links of queues." },
    ],
    submit: async (values) => {
      const { name, vhost } = values;
      await api.put(api.path("parameters", UPSTREAM, vhost, name), { value: asParameter(values) });
      await changed();
      return `The upstream ${name} is set.`;
    },
  });
}

const NUMBERS = ["prefetch-count", "reconnect-delay", "max-hops", "expires", "message-ttl"];
const TEXTS = ["uri", "ack-mode", "exchange", "queue", "consumer-tag"];

function asParameter(values) {
  const value = { "trust-user-id": values["trust-user-id"] };
  for (const key of TEXTS) if (values[key]) value[key] = values[key];
  for (const key of NUMBERS) if (!["", null].includes(values[key])) value[key] = Number(values[key]);
  return value;
}
