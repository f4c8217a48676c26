// Virtual hosts: the list, and one with its permissions and limits.

import * as api from "./api.js";
import { facts, to } from "./cells.js";
import { figure, pace, words } from "./columns.js";
import { ask } from "./deleting.js";
import { button, el, folded, section } from "./dom.js";
import { Form } from "./forms.js";
import { count } from "./format.js";
import { limitForm, limitsTable, VHOST_LIMITS } from "./limits.js";
import { permissionsTable } from "./permissions.js";
import { go } from "./router.js";
import { learnVhosts } from "./session.js";
import { DataTable } from "./table.js";

export function vhostsPage() {
  const table = new DataTable({
    id: "vhosts",
    addressed: true,
    caption: "Virtual hosts",
    key: (row) => row.name,
    load: (query) => api.get("vhosts", { query }),
    columns: [
      words("name", "Name", { cell: (row) => ({ text: row.name, href: to.vhost(row.name) }) }),
      words("description", "Description", { wrap: true }),
      words("tags", "Tags", {
        cell: (row) => (row.tags ?? []).map((text) => ({ text, tone: "plain" })),
      }),
      figure("messages_ready", "Ready"),
      figure("messages_unacknowledged", "Unacked"),
      figure("messages", "Total"),
      pace("publish", "In"),
      pace("deliver_get", "Out"),
    ],
  });
  const form = new Form({
    label: "Add virtual host",
    fields: [
      { name: "name", label: "Name", required: true },
      { name: "description", label: "Description" },
      { name: "tags", label: "Tags", hint: "Separated by commas." },
      {
        name: "defaultqueuetype",
        label: "Default type of queues",
        type: "select",
        options: [
          { value: "", label: "classic" },
          { value: "quorum", label: "quorum" },
          { value: "stream", label: "stream" },
        ],
        hint: "Of durable queues that are not exclusive and not auto-delete.",
      },
    ],
    submit: async ({ name, ...metadata }) => {
      await api.put(api.path("vhosts", name), metadata);
      await Promise.all([table.refresh(), learnVhosts()]);
      return `The virtual host ${name} is there. Users need permissions in it.`;
    },
  });
  const element = el(
    "div",
    { class: "page" },
    table.element,
    folded("Add a virtual host", form.element),
  );
  return { title: "Virtual hosts", call: "vhosts", element, refresh: () => table.refresh() };
}

export function vhostPage({ name }) {
  const where = api.path("vhosts", name);
  const about = facts([
    "Description",
    "Tags",
    "Default type of queues",
    "Ready",
    "Unacknowledged",
    "Total",
    "Tracing",
  ]);
  const refresh = async () => {
    const [vhost, permissions, limits] = await Promise.all([
      api.get(where),
      api.get(`${where}/permissions`),
      api.get(api.path("vhost-limits", name)),
    ]);
    about.set({
      Description: vhost.description,
      Tags: (vhost.tags ?? []).map((text) => ({ text, tone: "plain" })),
      "Default type of queues":
        vhost.default_queue_type === "undefined" ? "classic" : vhost.default_queue_type,
      Ready: count(vhost.messages_ready),
      Unacknowledged: count(vhost.messages_unacknowledged),
      Total: count(vhost.messages),
      Tracing: vhost.tracing ? "on" : "off",
    });
    granted.showAll(permissions);
    limited.showAll(limits);
  };
  const granted = permissionsTable({ id: "vhost-permissions", of: "vhost", changed: refresh });
  const limited = limitsTable({ id: "vhost-limits-one", kind: "vhost", changed: refresh });
  const remove = async () => {
    const text = `All queues, messages, exchanges, policies and permissions in ${name} are gone for good, and its connections are closed.`;
    const act = () => api.remove(where);
    if (
      !(await ask({
        title: `Delete the virtual host ${name}?`,
        text,
        label: "Delete virtual host",
        done: `The virtual host ${name} is deleted.`,
        act,
      }))
    )
      return;
    await learnVhosts();
    go("#/vhosts");
  };
  const element = el(
    "div",
    { class: "page" },
    section("About", about.element),
    section(
      "Permissions",
      granted.element,
      el("p", { class: "hint" }, "They are set on the pages of users."),
    ),
    section(
      "Limits",
      limited.element,
      folded(
        "Set a limit",
        limitForm({ kind: "vhost", names: [name], limits: VHOST_LIMITS, changed: refresh }).element,
      ),
    ),
    el(
      "div",
      { class: "page-actions" },
      button("Delete virtual host", remove, { class: "danger" }),
    ),
  );
  return { title: `Virtual host ${name}`, call: where, thing: "virtual host", element, refresh };
}
