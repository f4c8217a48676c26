// Nodes: the list, and one with where its memory is.

import * as api from "./api.js";
import { facts, nodeLink, to } from "./cells.js";
import { Chart } from "./chart.js";
import { figure, octets, words } from "./columns.js";
import { el, section } from "./dom.js";
import { bytes, count, duration, short } from "./format.js";
import { History } from "./history.js";
import { stateBadges } from "./node_state.js";
import { RangeChoice } from "./range.js";
import { session } from "./session.js";
import { DataTable } from "./table.js";

function alarmBadges(node) {
  if (!node.running) return null;
  const badges = [];
  if (node.mem_alarm) badges.push({ text: "memory", tone: "bad" });
  if (node.disk_free_alarm) badges.push({ text: "disk", tone: "bad" });
  return badges.length ? badges : { text: "none", tone: "good" };
}

export function nodesPage() {
  const table = new DataTable({
    id: "nodes",
    caption: "Nodes",
    brief: true,
    key: (row) => row.name,
    load: () => api.get("nodes"),
    columns: [
      words("name", "Name", { cell: (row) => ({ text: row.name, href: to.node(row.name) }) }),
      words("state", "State", { cell: stateBadges }),
      { id: "alarms", label: "Alarms", cell: alarmBadges },
      figure("uptime", "Uptime", "uptime", duration),
      octets("mem_used", "Memory"),
      octets("disk_free", "Disk free"),
      figure("fd_used", "File descriptors"),
      figure("sockets_used", "Sockets"),
    ],
  });
  return {
    title: "Nodes",
    call: "nodes",
    element: el("div", { class: "page" }, section("All nodes", table.element)),
    refresh: () => table.refresh(),
  };
}

const FACTS = [
  "State",
  "Alarms",
  "Uptime",
  "Process id",
  "Version",
  "Memory",
  "Memory limit",
  "Disk free",
  "Disk free limit",
  "File descriptors",
  "Sockets",
  "Processors",
  "Data directory",
  "Log",
  "Authentication",
];
const MEMORY = [
  { id: "used", label: "Used" },
  { id: "limit", label: "Limit" },
];

const LINKS = [
  words("name", "Node", { cell: (row) => nodeLink(row.name) }),
  figure("round_trip", "Round trip", "round_trip_seconds", (seconds) => `${short(seconds * 1000)} ms`),
  octets("received", "Received", "stats.recv_bytes"),
  octets("sent", "Sent", "stats.send_bytes"),
  octets("pending", "Waiting", "pending_bytes"),
  figure("lost", "Lost", "lost", count, { title: "how often the link went down" }),
];

export function nodePage({ name }) {
  const about = facts(FACTS);
  const history = new History();
  const range = new RangeChoice({ id: "node", long: true });
  const memory = new Chart({ title: "Memory", series: MEMORY, format: bytes, binary: true });
  const disk = new Chart({
    title: "Free disk space",
    series: [
      { id: "free", label: "Free" },
      { id: "limit", label: "Limit" },
    ],
    format: bytes,
    binary: true,
  });
  const parts = new DataTable({
    id: "node-memory",
    caption: "Memory by part",
    key: (row) => row.part,
    columns: [
      {
        id: "part",
        label: "Part",
        value: (row) => row.part,
        cell: (row) => row.part.replaceAll("_", " "),
      },
      {
        id: "bytes",
        label: "Size",
        numeric: true,
        value: (row) => row.bytes,
        cell: (row) => bytes(row.bytes),
      },
    ],
    brief: true,
  });
  const links = new DataTable({
    id: "node-links",
    caption: "Links to other nodes",
    empty: "There is no link to any other node.",
    key: (row) => row.name,
    columns: LINKS,
    brief: true,
  });
  const refresh = async () => {
    const node = await api.get(api.path("nodes", name), {
      query: { memory: true, ...range.query("node_stats") },
    });
    const now = api.nodeNow();
    const flat = (value) => [
      [now - range.ageS * 1000, value],
      [now, value],
    ];
    about.set(described(node));
    // Of a node that does not run nothing else is known.
    for (const part of parted) part.hidden = !node.running;
    if (!node.running) return;
    linkPart.hidden = !session.isInCluster;
    links.showAll(node.cluster_links ?? []);
    // Without a data directory there is no disk to watch.
    disk.element.hidden = !Number.isFinite(Number(node.disk_free));
    memory.update(
      {
        used: history.levels("used", node.mem_used_details, node.mem_used, now),
        limit: flat(node.mem_limit),
      },
      now,
      range.ageS,
    );
    disk.update(
      {
        free: history.levels("free", node.disk_free_details, Number(node.disk_free), now),
        limit: flat(node.disk_free_limit),
      },
      now,
      range.ageS,
    );
    const rows = Object.entries(node.memory ?? {}).filter(
      ([, size]) => typeof size === "number" && size > 0,
    );
    parts.showAll(
      rows.map(([part, size]) => ({ part, bytes: size })).sort((a, b) => b.bytes - a.bytes),
    );
  };
  range.changed = refresh;
  const linkPart = section("Links to other nodes", links.element);
  const parted = [
    linkPart,
    section(
      "Over time",
      range.element,
      el("div", { class: "charts" }, memory.element, disk.element),
    ),
    section(
      "Memory by part",
      el("p", { class: "hint" }, "Estimates, but for the total."),
      parts.element,
    ),
  ];
  linkPart.hidden = true;
  const element = el("div", { class: "page" }, section("About", about.element), ...parted);
  return { title: `Node ${name}`, call: api.path("nodes", name), thing: "node", element, refresh };
}

function described(node) {
  if (!node.running) return { State: stateBadges(node) };
  const version = node.applications?.find((one) => one.name === "warren")?.version;
  return {
    State: stateBadges(node),
    Alarms: alarmBadges(node),
    Uptime: duration(node.uptime),
    "Process id": node.os_pid,
    Version: version ?? null,
    Memory: bytes(node.mem_used),
    "Memory limit": bytes(node.mem_limit),
    "Disk free": bytes(Number(node.disk_free)),
    "Disk free limit": bytes(node.disk_free_limit),
    "File descriptors": `${count(node.fd_used)} of ${count(node.fd_total)}`,
    Sockets: `${count(node.sockets_used)} of ${count(node.sockets_total)}`,
    Processors: node.processors,
    "Data directory": node.db_dir || "none: in memory",
    Log: (node.log_files ?? []).join(", "),
    Authentication: (node.auth_mechanisms ?? []).map((one) => one.name).join(", "),
  };
}
