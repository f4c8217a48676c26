// Columns that several lists share.

import { to } from "./cells.js";
import { features } from "./features.js";
import { bytes, count, rate } from "./format.js";
import { session } from "./session.js";

/** A column of a figure that the node can sort by. `path` may lead into inner objects. */
export function figure(id, label, path = id, format = count, more = {}) {
  const value = (row) => at(row, path);
  return {
    id,
    label,
    sort: path,
    value,
    numeric: true,
    cell: (row) => shown(value(row), format),
    ...more,
  };
}

/** A column of how fast a message counter grows. */
export function pace(id, label, counter = id, more = {}) {
  return figure(id, label, `message_stats.${counter}_details.rate`, rate, {
    title: `${label} messages a second`,
    ...more,
  });
}

export function octets(id, label, path = id, more = {}) {
  return figure(id, label, path, bytes, more);
}

export function words(id, label, more = {}) {
  return { id, label, sort: id, value: (row) => row[id], cell: (row) => row[id] ?? null, ...more };
}

export function vhostColumn() {
  // With one virtual host there is nothing to tell apart.
  return words("vhost", "Virtual host", { hidden: session.vhosts.length < 2 });
}

export const featuresColumn = { id: "features", label: "Features", cell: features, wrap: true };

export function policyColumn() {
  return words("policy", "Policy", {
    wrap: true,
    cell: (row) => [row.policy, row.operator_policy].filter(Boolean),
  });
}

export function channelLink(details) {
  return details?.name ? { text: details.name, href: to.channel(details.name) } : null;
}

function at(row, path) {
  return path.split(".").reduce((value, name) => value?.[name], row);
}

function shown(value, format) {
  return value === null || value === undefined ? null : format(value);
}
