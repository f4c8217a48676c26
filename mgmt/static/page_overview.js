// The broker at a glance.

import * as api from "./api.js";
import { facts, showCell, to } from "./cells.js";
import { Chart } from "./chart.js";
import { el, section, setText } from "./dom.js";
import { bytes, count, duration, rate, short } from "./format.js";
import { History } from "./history.js";
import { Meter } from "./meter.js";
import { stateBadges } from "./node_state.js";
import { RangeChoice } from "./range.js";
import { session } from "./session.js";
import { DataTable } from "./table.js";

const RATES = [
  ["publish", "Published"],
  ["confirm", "Confirmed"],
  ["deliver_get", "Delivered"],
  ["ack", "Acknowledged"],
  ["redeliver", "Redelivered"],
];
const UNROUTABLE = [
  ["return_unroutable", "Returned to publishers"],
  ["drop_unroutable", "Dropped"],
];
const DISK = [
  ["disk_writes", "Messages written"],
  ["disk_reads", "Messages read"],
];
const LENGTHS = [
  ["messages", "Total"],
  ["messages_ready", "Ready"],
  ["messages_unacknowledged", "Unacknowledged"],
];
const OBJECTS = [
  ["connections", "Connections"],
  ["channels", "Channels"],
  ["exchanges", "Exchanges"],
  ["queues", "Queues"],
  ["consumers", "Consumers"],
];
const CHURN = [
  ["connection_created", "Connections opened"],
  ["connection_closed", "Connections closed"],
  ["channel_created", "Channels opened"],
  ["channel_closed", "Channels closed"],
  ["queue_declared", "Queues declared"],
  ["queue_created", "Queues created"],
  ["queue_deleted", "Queues deleted"],
];

export function overviewPage() {
  const history = new History();
  const range = new RangeChoice({ id: "overview", long: true });
  const rateChart = (title, series) =>
    new Chart({ title, series: series.map(([id, label]) => ({ id, label })), format: rate });
  const rates = [
    [rateChart("Message rates", RATES), RATES],
    [rateChart("Unroutable messages", UNROUTABLE), UNROUTABLE],
    [rateChart("Disk", DISK), DISK],
  ];
  const queued = new Chart({
    title: "Queued messages",
    series: LENGTHS.map(([id, label]) => ({ id, label })),
    format: short,
  });
  const tiles = makeTiles();
  const about = el("p", { class: "about" });
  const node = session.isMonitor ? new NodeBox() : null;
  const monitor = session.isMonitor ? new MonitorParts() : null;

  const refresh = async () => {
    const query = { ...range.query("lengths"), ...range.query("msg_rates") };
    const [overview, nodes] = await Promise.all([
      api.get("overview", { query, vhost: session.vhost }),
      session.isMonitor ? api.get("nodes") : [],
    ]);
    const now = api.nodeNow();
    setText(
      about,
      `${overview.product_name} ${overview.product_version}, compatible with RabbitMQ ${overview.rabbitmq_version} · cluster ${overview.cluster_name} · node ${overview.node}`,
    );
    tiles.update(overview.object_totals, overview.queue_totals);
    const stats = overview.message_stats;
    for (const [chart, series] of rates) {
      const lines = series.map(([id]) => [id, history.rates(id, stats[`${id}_details`], now)]);
      chart.update(Object.fromEntries(lines), now, range.ageS);
    }
    const totals = overview.queue_totals;
    queued.update(
      Object.fromEntries(
        LENGTHS.map(([id]) => [id, history.levels(id, totals[`${id}_details`], totals[id], now)]),
      ),
      now,
      range.ageS,
    );
    node?.update(nodes);
    monitor?.update(overview);
  };
  range.changed = refresh;

  const charts = section(
    "Messages",
    range.element,
    el("div", { class: "charts" }, queued.element, ...rates.map(([chart]) => chart.element)),
  );
  const element = el(
    "div",
    { class: "page" },
    about,
    tiles.element,
    charts,
    node?.element,
    monitor?.elements,
  );
  return { title: "Overview", call: "overview", element, refresh };
}

function makeTiles() {
  const values = new Map();
  const tile = (id, label, href) => {
    const value = el("b", {}, "–");
    values.set(id, value);
    const inner = [value, el("span", {}, label)];
    return href ? el("a", { href, class: "tile" }, inner) : el("div", { class: "tile" }, inner);
  };
  const element = el(
    "div",
    { class: "tiles" },
    tile("messages_ready", "Messages ready"),
    tile("messages_unacknowledged", "Messages unacked"),
    OBJECTS.map(([id, label]) => tile(id, label, id === "consumers" ? null : `#/${id}`)),
  );
  const update = (...tables) => {
    for (const table of tables) {
      for (const [id, value] of Object.entries(table)) {
        if (values.has(id)) setText(values.get(id), count(value));
      }
    }
  };
  return { element, update };
}

/** What the nodes have used of what they may use. */
class NodeBox {
  #rows = el("div", { class: "node-rows" });
  element = section("Nodes", this.#rows);
  #known = new Map();

  update(nodes) {
    const there = new Set(nodes.map((node) => node.name));
    for (const [name, row] of this.#known) {
      if (!there.has(name)) {
        row.element.remove();
        this.#known.delete(name);
      }
    }
    for (const node of nodes) {
      let row = this.#known.get(node.name);
      if (!row) {
        row = new NodeRow(node.name);
        this.#known.set(node.name, row);
        this.#rows.append(row.element);
      }
      row.update(node);
    }
  }
}

class NodeRow {
  #memory = new Meter("Memory", bytes);
  #disk = new Meter("Free disk space", bytes, { wanted: "least" });
  #files = new Meter("File descriptors", count);
  #sockets = new Meter("Sockets", count);
  #uptime = el("span", { class: "hint" });
  #state = el("span");
  #meters;
  element;

  constructor(name) {
    const link = el("a", { href: to.node(name) }, name);
    const head = el("h3", {}, link, " ", this.#state, " ", this.#uptime);
    const meters = [this.#memory, this.#disk, this.#files, this.#sockets].map((one) => one.element);
    this.#meters = el("div", { class: "meters" }, meters);
    this.element = el("div", {}, head, this.#meters);
  }

  update(node) {
    this.#state.hidden = node.running && !session.isInCluster;
    showCell(this.#state, stateBadges(node));
    this.#meters.hidden = !node.running;
    setText(this.#uptime, node.running ? `up ${duration(node.uptime)}` : "");
    if (!node.running) return;
    this.#memory.update(node.mem_used, node.mem_limit, node.mem_alarm);
    this.#disk.update(Number(node.disk_free), node.disk_free_limit, node.disk_free_alarm);
    this.#files.update(node.fd_used, node.fd_total);
    this.#sockets.update(node.sockets_used, node.sockets_total);
  }
}

class MonitorParts {
  #churn = facts(CHURN.map(([, label]) => label));
  #listeners = new DataTable({
    id: "listeners",
    caption: "Listeners",
    brief: true,
    key: (row) => `${row.protocol} ${row.ip_address}:${row.port}`,
    columns: [
      { id: "protocol", label: "Protocol", cell: (row) => row.protocol },
      { id: "address", label: "Address", cell: (row) => row.ip_address },
      { id: "port", label: "Port", cell: (row) => row.port, numeric: true },
      { id: "node", label: "Node", cell: (row) => row.node },
    ],
  });
  elements = [section("Churn", this.#churn.element), section("Listeners", this.#listeners.element)];

  update({ churn_rates: churn, listeners }) {
    this.#churn.set(
      Object.fromEntries(
        CHURN.map(([id, label]) => [
          label,
          `${count(churn[id])} (${rate(churn[`${id}_details`]?.rate)})`,
        ]),
      ),
    );
    this.#listeners.showAll(listeners);
  }
}
