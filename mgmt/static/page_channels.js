// Channels: the list, and one with its consumers.

import * as api from "./api.js";
import { facts, nodeLink, to } from "./cells.js";
import { Chart } from "./chart.js";
import { figure, pace, vhostColumn, words } from "./columns.js";
import { consumersTable } from "./consumers.js";
import { el, section } from "./dom.js";
import { rate } from "./format.js";
import { History } from "./history.js";
import { RangeChoice } from "./range.js";
import { session } from "./session.js";
import { DataTable } from "./table.js";

/** `own`: in the list of one connection, whose user and virtual host are known. */
export function channelColumns({ own = false } = {}) {
  const whose = own ? [] : [vhostColumn(), words("user", "User")];
  return [
    words("name", "Channel", {
      cell: (row) => ({ text: own ? String(row.number) : row.name, href: to.channel(row.name) }),
    }),
    ...whose,
    { id: "mode", label: "Mode", cell: mode, title: "C: confirms, T: transactions" },
    figure("prefetch_count", "Prefetch", "prefetch_count", limit),
    figure("global", "Global prefetch", "global_prefetch_count", limit, { hidden: true }),
    figure("messages_unacknowledged", "Unacked"),
    figure("messages_unconfirmed", "Unconfirmed"),
    figure("consumer_count", "Consumers"),
    pace("publish", "Publish"),
    pace("deliver_get", "Deliver"),
    pace("ack", "Ack"),
    pace("redeliver", "Redeliver", "redeliver", { hidden: true }),
  ];
}

function limit(value) {
  return value ? String(value) : "no limit";
}

function mode(row) {
  const badges = [];
  if (row.confirm) badges.push({ text: "C", tone: "plain", title: "publisher confirms" });
  if (row.transactional) badges.push({ text: "T", tone: "plain", title: "transactions" });
  return badges;
}

export function channelsPage() {
  const table = new DataTable({
    id: "channels",
    addressed: true,
    caption: "Channels",
    empty: "No channels.",
    key: (row) => row.name,
    load: (query) => api.get("channels", { query, vhost: session.vhost }),
    columns: channelColumns(),
  });
  return {
    title: "Channels",
    call: "channels",
    element: el("div", { class: "page" }, table.element),
    refresh: () => table.refresh(),
  };
}

const FACTS = [
  "Connection",
  "User",
  "Virtual host",
  "State",
  "Mode",
  "Prefetch",
  "Global prefetch",
  "Unacknowledged",
  "Unconfirmed",
  "Uncommitted",
  "Consumers",
  "Node",
];
const RATES = [
  ["publish", "Published"],
  ["confirm", "Confirmed"],
  ["deliver_get", "Delivered"],
  ["ack", "Acknowledged"],
  ["redeliver", "Redelivered"],
];

export function channelPage({ name }) {
  const about = facts(FACTS);
  const history = new History();
  const range = new RangeChoice({ id: "channel" });
  const rates = new Chart({
    title: "Message rates",
    series: RATES.map(([id, label]) => ({ id, label })),
    format: rate,
  });
  const consumers = consumersTable({ id: "channel-consumers" });
  const refresh = async () => {
    const row = await api.get(api.path("channels", name), { query: range.query("msg_rates") });
    const now = api.nodeNow();
    const connection = row.connection_details?.name;
    about.set({
      Connection: connection ? { text: connection, href: to.connection(connection) } : null,
      User: row.user,
      "Virtual host": row.vhost,
      State: { text: row.state, tone: row.state === "running" ? "good" : "warn" },
      Mode: row.confirm ? "confirms" : row.transactional ? "transactions" : "plain",
      Prefetch: limit(row.prefetch_count),
      "Global prefetch": limit(row.global_prefetch_count),
      Unacknowledged: row.messages_unacknowledged,
      Unconfirmed: row.messages_unconfirmed,
      Uncommitted: row.messages_uncommitted,
      Consumers: row.consumer_count,
      Node: nodeLink(row.node),
    });
    const stats = row.message_stats ?? {};
    rates.update(
      Object.fromEntries(RATES.map(([id]) => [id, history.rates(id, stats[`${id}_details`], now)])),
      now,
      range.ageS,
    );
    consumers.showAll(row.consumer_details);
  };
  range.changed = refresh;
  const element = el(
    "div",
    { class: "page" },
    section("About", about.element),
    section("Messages", range.element, rates.element),
    section("Consumers", consumers.element),
  );
  return {
    title: `Channel ${name}`,
    call: api.path("channels", name),
    thing: "channel",
    element,
    refresh,
  };
}
