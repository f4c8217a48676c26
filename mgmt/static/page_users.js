// Users: the list, and one with its permissions.

import * as api from "./api.js";
import { facts, to } from "./cells.js";
import { words } from "./columns.js";
import { ask } from "./deleting.js";
import { button, el, folded, section } from "./dom.js";
import { Form } from "./forms.js";
import { pairs } from "./format.js";
import { permissionsTable, topicPermissionsTable } from "./permissions.js";
import { go } from "./router.js";
import { logIn, session } from "./session.js";
import { DataTable } from "./table.js";

const TAGS = [
  { value: "administrator", title: "may do everything" },
  { value: "monitoring", title: "sees nodes, and all connections and virtual hosts" },
  { value: "policymaker", title: "sets policies and parameters in the user's virtual hosts" },
  { value: "management", title: "sees the user's own virtual hosts" },
];
const TAGS_FIELD = {
  name: "tags",
  label: "Tags",
  type: "choices",
  options: TAGS,
  value: [],
  hint: "Without any: no access to these pages.",
};

export function usersPage() {
  const table = new DataTable({
    id: "users",
    addressed: true,
    caption: "Users",
    empty: "No users.",
    key: (row) => row.name,
    load: loadUsers,
    columns: [
      words("name", "Name", { cell: (row) => ({ text: row.name, href: to.user(row.name) }) }),
      words("tags", "Tags", {
        cell: (row) => row.tags.map((text) => ({ text, tone: "plain" })),
        value: (row) => row.tags.join(),
      }),
      { id: "vhosts", label: "May enter", wrap: true, cell: (row) => row.vhosts.join(", ") },
      words("password", "Password", {
        value: (row) => Boolean(row.password_hash),
        cell: (row) =>
          row.password_hash
            ? "set"
            : { text: "none", tone: "warn", title: "cannot log in by password" },
      }),
      { id: "limits", label: "Limits", cell: (row) => pairs(row.limits) },
    ],
  });
  const form = new Form({
    label: "Add user",
    fields: [
      { name: "name", label: "Name", required: true },
      { name: "password", label: "Password", type: "password", required: true },
      TAGS_FIELD,
    ],
    submit: async ({ name, password, tags }) => {
      await api.put(api.path("users", name), { password, tags: tags.join(",") });
      await table.refresh();
      return `The user ${name} is there. Permissions are on the user's own page.`;
    },
  });
  const element = el("div", { class: "page" }, table.element, folded("Add a user", form.element));
  return { title: "Users", call: "users", element, refresh: () => table.refresh() };
}

async function loadUsers() {
  const [users, permissions] = await Promise.all([api.get("users"), api.get("permissions")]);
  const vhosts = Map.groupBy(permissions, (row) => row.user);
  return users.map((user) => ({
    ...user,
    tags: asList(user.tags),
    vhosts: (vhosts.get(user.name) ?? []).map((row) => row.vhost),
  }));
}

/** Tags come as a list, from some nodes as a text with commas. */
function asList(tags) {
  return Array.isArray(tags) ? tags : tags.split(",").filter(Boolean);
}

export function userPage({ name }) {
  const where = api.path("users", name);
  const about = facts(["Tags", "Password", "Limits"]);
  let known = false;
  const refresh = async () => {
    const [user, permissions, topics] = await Promise.all([
      api.get(where),
      api.get(`${where}/permissions`),
      api.get(`${where}/topic-permissions`),
    ]);
    const tags = asList(user.tags);
    about.set({
      Tags: tags.map((text) => ({ text, tone: "plain" })),
      Password: user.password_hash ? "set" : "none",
      Limits: pairs(user.limits),
    });
    granted.showAll(permissions);
    topical.showAll(topics);
    // What somebody is typing is not overwritten.
    if (!known) tagsForm.set({ tags });
    known = true;
  };
  const granted = permissionsTable({ id: "user-permissions", of: "user", changed: refresh });
  const topical = topicPermissionsTable({ id: "user-topic-permissions", changed: refresh });
  const tagsForm = new Form({
    label: "Set tags",
    keep: true,
    fields: [TAGS_FIELD],
    submit: async ({ tags }) => {
      const { password_hash: hash, hashing_algorithm: algorithm } = await api.get(where);
      await api.put(where, { password_hash: hash, hashing_algorithm: algorithm, tags: tags.join(",") });
      await refresh();
      return `The tags of ${name} are set.`;
    },
  });
  const element = el(
    "div",
    { class: "page" },
    section("About", about.element),
    section(
      "Permissions",
      granted.element,
      folded("Set permissions", permissionForm(name, refresh).element),
    ),
    section(
      "Topic permissions",
      topical.element,
      folded("Set topic permissions", topicForm(name, refresh).element),
    ),
    folded("Change tags", tagsForm.element),
    folded("Change password", passwordForm(where, name).element),
    el(
      "div",
      { class: "page-actions" },
      button("Delete user", () => removeUser(where, name), { class: "danger" }),
    ),
  );
  return { title: `User ${name}`, call: where, thing: "user", element, refresh };
}

async function removeUser(where, name) {
  const text =
    name === session.name
      ? "That is you: you will be logged out."
      : "Connections of the user are closed.";
  const act = () => api.remove(where);
  if (
    await ask({
      title: `Delete the user ${name}?`,
      text,
      label: "Delete user",
      done: `The user ${name} is deleted.`,
      act,
    })
  )
    go("#/users");
}

function passwordForm(where, name) {
  return new Form({
    label: "Set password",
    fields: [{ name: "password", label: "New password", type: "password", required: true }],
    submit: async ({ password }) => {
      const { tags } = await api.get(where);
      await api.put(where, { password, tags });
      // The cookie holds the old one.
      if (name === session.name) await logIn(name, password);
      return `The password of ${name} is set.`;
    },
  });
}

function permissionForm(user, changed) {
  const pattern = (name, label, hint) => ({ name, label, value: ".*", hint });
  return new Form({
    label: "Set permissions",
    fields: [
      {
        name: "vhost",
        label: "Virtual host",
        type: "select",
        options: session.vhosts,
        value: session.usualVhost,
      },
      pattern(
        "configure",
        "Configure",
        "Names of queues and exchanges to declare and delete, as a regular expression.",
      ),
      pattern("write", "Write", "Names to publish to and to bind."),
      pattern("read", "Read", "Names to consume from and to bind from."),
    ],
    submit: async ({ vhost, ...patterns }) => {
      await api.put(api.path("permissions", vhost, user), patterns);
      await changed();
      return `The permissions of ${user} in ${vhost} are set.`;
    },
  });
}

function topicForm(user, changed) {
  return new Form({
    label: "Set topic permissions",
    fields: [
      {
        name: "vhost",
        label: "Virtual host",
        type: "select",
        options: session.vhosts,
        value: session.usualVhost,
      },
      { name: "exchange", label: "Exchange", value: "amq.topic", required: true },
      {
        name: "write",
        label: "Write",
        value: ".*",
        hint: "Routing keys to publish by, as a regular expression.",
      },
      { name: "read", label: "Read", value: ".*", hint: "Routing keys to bind by." },
    ],
    submit: async ({ vhost, ...patterns }) => {
      await api.put(api.path("topic-permissions", vhost, user), patterns);
      await changed();
      return `The topic permissions of ${user} in ${vhost} are set.`;
    },
  });
}
