// Limits of virtual hosts and users: their lists, and the form that sets one.

import * as api from "./api.js";
import { to } from "./cells.js";
import { ask } from "./deleting.js";
import { Form } from "./forms.js";
import { count } from "./format.js";
import { DataTable } from "./table.js";

export const VHOST_LIMITS = [
  "max-connections",
  "max-queues",
  "max-messages",
  "max-bytes",
  "max-queue-messages",
  "max-queue-bytes",
];
export const USER_LIMITS = ["max-connections", "max-channels", "max-messages", "max-bytes"];

const LABELS = { vhost: "Virtual host", user: "User" };

/** `kind` is "vhost" or "user". Rows are the node's, a table of limits each. */
export function limitsTable({ id, kind, changed }) {
  const clear = async ({ owner, limit }) => {
    const act = () => api.remove(api.path(`${kind}-limits`, owner, limit));
    const text = `${owner} will have no ${limit}.`;
    if (
      await ask({
        title: "Clear this limit?",
        text,
        label: "Clear",
        done: "The limit is cleared.",
        act,
      })
    )
      changed();
  };
  const table = new DataTable({
    id,
    caption: `Limits of ${kind === "user" ? "users" : "virtual hosts"}`,
    brief: true,
    empty: "No limits.",
    key: (row) => `${row.owner} ${row.limit}`,
    columns: [
      {
        id: "owner",
        label: LABELS[kind],
        value: (row) => row.owner,
        cell: (row) => ({ text: row.owner, href: to[kind](row.owner) }),
      },
      { id: "limit", label: "Limit", value: (row) => row.limit, cell: (row) => row.limit },
      {
        id: "value",
        label: "Value",
        numeric: true,
        value: (row) => row.value,
        cell: (row) => (row.value < 0 ? "no limit" : count(row.value)),
      },
    ],
    actions: (row) => [{ label: "Clear", name: `Clear ${row.limit} of ${row.owner}`, act: clear }],
  });
  return {
    element: table.element,
    showAll: (rows) => table.showAll(rows.flatMap((row) => single(row, kind))),
  };
}

function single(row, kind) {
  return Object.entries(row.value).map(([limit, value]) => ({ owner: row[kind], limit, value }));
}

export function limitForm({ kind, names, limits, changed }) {
  return new Form({
    label: "Set limit",
    fields: [
      { name: "owner", label: LABELS[kind], type: "select", options: names },
      { name: "limit", label: "Limit", type: "select", options: limits },
      {
        name: "value",
        label: "Value",
        type: "number",
        required: true,
        hint: "-1 is no limit, 0 allows none.",
      },
    ],
    submit: async ({ owner, limit, value }) => {
      await api.put(api.path(`${kind}-limits`, owner, limit), { value: Number(value) });
      await changed();
      return `${limit} of ${owner} is ${value}.`;
    },
  });
}
