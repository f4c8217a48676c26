// Who may do what where: lists on the pages of users and virtual hosts.

import * as api from "./api.js";
import { to } from "./cells.js";
import { ask } from "./deleting.js";
import { DataTable } from "./table.js";

/** `of` says whose page it is: "user" lists virtual hosts, "vhost" lists users. */
export function permissionsTable({ id, of, changed }) {
  const remove = async (row) => {
    const text = `${row.user} can no longer enter ${row.vhost}.`;
    const act = () => api.remove(api.path("permissions", row.vhost, row.user));
    if (
      await ask({
        title: "Take these permissions away?",
        text,
        label: "Clear",
        done: "The permissions are cleared.",
        act,
      })
    )
      changed();
  };
  const other = of === "user" ? "vhost" : "user";
  return new DataTable({
    id,
    caption: "Permissions",
    brief: true,
    empty: of === "user" ? "The user may enter no virtual host." : "Nobody may enter.",
    key: (row) => `${row.vhost} ${row.user}`,
    columns: [
      {
        id: other,
        label: of === "user" ? "Virtual host" : "User",
        value: (row) => row[other],
        cell: (row) => ({ text: row[other], href: to[other](row[other]) }),
      },
      ...patterns("configure", "write", "read"),
    ],
    actions: (row) => [
      { label: "Clear", name: `Clear permissions of ${row.user} in ${row.vhost}`, act: remove },
    ],
  });
}

export function topicPermissionsTable({ id, changed }) {
  const remove = async (row) => {
    const text = `${row.user} is no longer limited by routing keys of ${row.exchange}.`;
    const act = () =>
      api.remove(api.path("topic-permissions", row.vhost, row.user, row.exchange || "amq.default"));
    if (
      await ask({
        title: "Take these permissions away?",
        text,
        label: "Clear",
        done: "The topic permissions are cleared.",
        act,
      })
    )
      changed();
  };
  return new DataTable({
    id,
    caption: "Topic permissions",
    brief: true,
    empty: "No topic permissions: all routing keys are allowed.",
    key: (row) => `${row.vhost} ${row.exchange}`,
    columns: [
      { id: "vhost", label: "Virtual host", value: (row) => row.vhost, cell: (row) => row.vhost },
      {
        id: "exchange",
        label: "Exchange",
        value: (row) => row.exchange,
        cell: (row) => row.exchange,
      },
      ...patterns("write", "read"),
    ],
    actions: (row) => [
      {
        label: "Clear",
        name: `Clear topic permissions for ${row.exchange} in ${row.vhost}`,
        act: remove,
      },
    ],
  });
}

function patterns(...names) {
  const label = (name) => name[0].toUpperCase() + name.slice(1);
  return names.map((name) => ({
    id: name,
    label: label(name),
    cell: (row) => row[name] || "(nothing)",
  }));
}
