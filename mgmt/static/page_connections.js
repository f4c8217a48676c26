// Connections: the list, and one with its channels.

import * as api from "./api.js";
import { facts, nodeLink, table as valuesTable, to } from "./cells.js";
import { Chart } from "./chart.js";
import { channelColumns } from "./page_channels.js";
import { figure, octets, vhostColumn, words } from "./columns.js";
import { button, el, section } from "./dom.js";
import { bytes, duration, moment } from "./format.js";
import { confirmed } from "./forms.js";
import { History } from "./history.js";
import { failed, said } from "./notices.js";
import { RangeChoice } from "./range.js";
import { go } from "./router.js";
import { session } from "./session.js";
import { DataTable } from "./table.js";

const STATE_TONES = { running: "good", flow: "warn", blocked: "bad", blocking: "warn" };

export function stateBadge(state) {
  return state ? { text: state, tone: STATE_TONES[state] ?? "plain" } : null;
}

const bytesPerSecond = (value) => `${bytes(value)}/s`;

export function connectionsPage() {
  const table = new DataTable({
    id: "connections",
    addressed: true,
    caption: "Connections",
    empty: "No connections.",
    key: (row) => row.name,
    load: (query) => api.get("connections", { query, vhost: session.vhost }),
    columns: [
      words("name", "Name", { cell: (row) => nameCell(row) }),
      vhostColumn(),
      words("user", "User"),
      words("state", "State", { cell: (row) => stateBadge(row.state) }),
      words("ssl", "TLS", { cell: (row) => (row.ssl ? "yes" : "no"), hidden: true }),
      words("protocol", "Protocol", { hidden: true }),
      figure("channels", "Channels"),
      figure("recv", "From client", "recv_oct_details.rate", bytesPerSecond),
      figure("send", "To client", "send_oct_details.rate", bytesPerSecond),
      octets("send_pend", "Waiting in socket", "send_pend", { hidden: true }),
      words("connected_at", "Connected", {
        cell: (row) => (row.connected_at ? moment(row.connected_at) : null),
        hidden: true,
      }),
      words("node", "Node", { cell: (row) => nodeLink(row.node), hidden: true }),
    ],
  });
  return {
    title: "Connections",
    call: "connections",
    element: el("div", { class: "page" }, table.element),
    refresh: () => table.refresh(),
  };
}

function nameCell(row) {
  const name = { text: row.name, href: to.connection(row.name) };
  return row.user_provided_name ? [name, { text: row.user_provided_name, tone: "plain" }] : name;
}

const FACTS = [
  "User",
  "Virtual host",
  "State",
  "Blocked",
  "Client name",
  "Protocol",
  "Authentication",
  "TLS",
  "Connected",
  "Heartbeat",
  "Frame size",
  "Channels",
  "Waiting in socket",
  "Received",
  "Sent",
  "Node",
];

export function connectionPage({ name }) {
  const where = api.path("connections", name);
  const about = facts(FACTS);
  const client = facts(["Client properties"]);
  const history = new History();
  const range = new RangeChoice({ id: "connection" });
  const data = new Chart({
    title: "Data rates",
    series: [
      { id: "recv_oct", label: "From client" },
      { id: "send_oct", label: "To client" },
    ],
    format: bytesPerSecond,
    binary: true,
  });
  const channels = new DataTable({
    id: "connection-channels",
    caption: "Channels of the connection",
    brief: true,
    empty: "No channels.",
    key: (row) => row.name,
    columns: channelColumns({ own: true }),
  });
  const refresh = async () => {
    const [row, rows] = await Promise.all([
      api.get(where, { query: range.query("data_rates") }),
      api.get(`${where}/channels`),
    ]);
    const now = api.nodeNow();
    about.set(described(row, now));
    client.set({ "Client properties": valuesTable(row.client_properties) });
    const lines = ["recv_oct", "send_oct"].map((id) => [
      id,
      history.rates(id, row[`${id}_details`], now),
    ]);
    data.update(Object.fromEntries(lines), now, range.ageS);
    channels.showAll(rows);
  };
  range.changed = refresh;
  const close = async () => {
    const text = `The connection ${name} is closed. Its client may open another one.`;
    if (!(await confirmed({ title: "Close this connection?", text, label: "Close connection" })))
      return;
    try {
      await api.remove(where);
      said("The connection is closed.");
      go("#/connections");
    } catch (problem) {
      failed(problem);
    }
  };
  const element = el(
    "div",
    { class: "page" },
    section("About", about.element, client.element),
    section("Data", range.element, data.element),
    section("Channels", channels.element),
    el("div", { class: "page-actions" }, button("Close connection", close, { class: "danger" })),
  );
  return { title: `Connection ${name}`, call: where, thing: "connection", element, refresh };
}

function ofQueue(queue) {
  return queue ? `, and queue ${queue.name} in ${queue.vhost} grows` : "";
}

function described(row, now) {
  return {
    User: row.user,
    "Virtual host": row.vhost,
    State: stateBadge(row.state),
    Blocked: row.blocked_since
      ? `since ${moment(row.blocked_since)}: ${row.blocked_reason}${ofQueue(row.blocked_by_queue)}`
      : null,
    "Client name": row.user_provided_name,
    Protocol: row.protocol,
    Authentication: row.auth_mechanism,
    TLS: row.ssl ? (row.ssl_protocol ?? "yes") : "no",
    Connected: row.connected_at
      ? `${moment(row.connected_at)} (${duration(now - row.connected_at)})`
      : null,
    Heartbeat: row.timeout ? `${row.timeout} s` : "none",
    "Frame size": row.frame_max ? bytes(row.frame_max) : "unlimited",
    Channels: row.channels,
    "Waiting in socket": bytes(row.send_pend),
    Received: bytes(row.recv_oct),
    Sent: bytes(row.send_oct),
    Node: nodeLink(row.node),
  };
}
