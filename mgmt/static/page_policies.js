// Policies and operator policies: lists, and the forms that set one.

import * as api from "./api.js";
import { words } from "./columns.js";
import { ask } from "./deleting.js";
import { el, folded, section } from "./dom.js";
import { Form } from "./forms.js";
import { pairs } from "./format.js";
import { session } from "./session.js";
import { DataTable } from "./table.js";

const KEYS = [
  { key: "message-ttl", value: 60000, title: "milliseconds a message may wait" },
  { key: "expires", value: 1800000, title: "milliseconds an unused queue lives" },
  { key: "max-length", value: 10000, title: "messages at most" },
  { key: "max-length-bytes", value: 1048576, title: "octets at most" },
];
const MIRRORING_KEYS = [
  { key: "ha-mode", value: "all", title: "which nodes have copies of a queue: all, exactly or nodes" },
  {
    key: "ha-params",
    value: 2,
    title: "for exactly: how many copies; for nodes: a list of their names",
  },
  {
    key: "ha-sync-mode",
    value: "automatic",
    title: "automatic or manual: whether a new mirror is sent what is there already",
  },
  { key: "ha-sync-batch-size", value: 64, title: "messages that a mirror is sent at a time, at most" },
  {
    key: "ha-promote-on-shutdown",
    value: "always",
    title: "when-synced or always: who may lead when the leader stops",
  },
  {
    key: "ha-promote-on-failure",
    value: "when-synced",
    title: "when-synced or always: who may lead when the leader is lost",
  },
  {
    key: "queue-master-locator",
    value: "min-masters",
    title: "where a new queue is: client-local, min-masters or random",
  },
];
const MORE_KEYS = [
  {
    key: "overflow",
    value: "reject-publish",
    title: "drop-head, reject-publish or reject-publish-dlx",
  },
  { key: "dead-letter-exchange", title: "where rejected and expired messages go" },
  { key: "dead-letter-routing-key", title: "by which key they go there" },
  { key: "delivery-limit", value: 20, title: "how often a message may come back" },
  {
    key: "redelivery-delay",
    value: [1000, 10000, 60000],
    title: "classic queues: how many milliseconds each return waits",
  },
  {
    key: "retention",
    value: { "max-age": "7D", "max-bytes": 1073741824 },
    title: "classic and quorum queues: how long acknowledged messages are kept",
  },
  {
    key: "dead-letter-strategy",
    value: "at-least-once",
    title: "quorum queues: at-most-once or at-least-once",
  },
  { key: "max-age", value: "7D", title: "streams: how long messages are kept (Y M D h m s)" },
  {
    key: "stream-max-segment-size-bytes",
    value: 500000000,
    title: "streams: octets that are removed together",
  },
  { key: "queue-mode", value: "lazy", title: "default or lazy: messages on disk" },
  { key: "alternate-exchange", title: "where messages go that match no binding" },
  {
    key: "federation-upstream-set",
    value: "all",
    title: "the set of upstreams to get messages from; all is every upstream",
  },
  { key: "federation-upstream", title: "the upstream to get messages from" },
  { key: "federation-upstream-pattern", title: "which upstreams to get messages from, by name" },
];

/** `query` may hold values the form begins with. */
export function policiesPage(parameters, query) {
  const kinds = [
    new PolicyKind({
      path: "policies",
      title: "Policies",
      one: "policy",
      keys: [...KEYS, ...MORE_KEYS, ...MIRRORING_KEYS],
      mayChange: session.isPolicymaker,
    }),
  ];
  // Operators limit what others set: only administrators do that.
  if (session.isAdministrator) {
    kinds.push(
      new PolicyKind({
        path: "operator-policies",
        title: "Operator policies",
        one: "operator policy",
        keys: KEYS,
        mayChange: true,
      }),
    );
  }
  let begun = query.size === 0;
  const refresh = async () => {
    await Promise.all(kinds.map((kind) => kind.refresh()));
    // Once, and not before the form is on show: only then it can have the focus.
    if (!begun) kinds[0].begin(Object.fromEntries(query));
    begun = true;
  };
  return {
    title: "Policies",
    call: "policies",
    element: el(
      "div",
      { class: "page" },
      kinds.map((kind) => kind.element),
    ),
    refresh,
  };
}

class PolicyKind {
  #path;
  #one;
  #table;
  #form;
  #folded;

  constructor({ path, title, one, keys, mayChange }) {
    this.#path = path;
    this.#one = one;
    this.#table = this.#makeTable(title, mayChange);
    this.#form = this.#makeForm(keys);
    this.#folded = mayChange
      ? folded(`Set ${one === "policy" ? "a" : "an"} ${one}`, this.#form.element)
      : null;
    this.element = section(title, this.#table.element, this.#folded);
  }

  refresh() {
    return this.#table.refresh();
  }

  /** Opens the form with these values. */
  begin(values) {
    this.#form.set(values);
    this.#folded.open = true;
    this.#folded.scrollIntoView({ block: "nearest" });
    this.#form.element.querySelector("input").focus();
  }

  #makeTable(title, mayChange) {
    return new DataTable({
      id: this.#path,
      caption: title,
      brief: true,
      empty: `No ${title.toLowerCase()}.`,
      key: (row) => `${row.vhost} ${row.name}`,
      load: () => api.get(this.#path, { vhost: session.vhost }),
      columns: [
        words("name", "Name"),
        words("vhost", "Virtual host"),
        words("pattern", "Pattern"),
        words("apply-to", "Applies to"),
        words("priority", "Priority", { numeric: true }),
        { id: "definition", label: "Definition", wrap: true, cell: (row) => pairs(row.definition) },
      ],
      actions: mayChange
        ? (row) => [
            {
              label: "Edit",
              name: `Edit ${this.#one} ${row.name}`,
              act: (now) => this.begin({ ...now, priority: String(now.priority) }),
            },
            {
              label: "Delete",
              name: `Delete ${this.#one} ${row.name}`,
              act: (now) => this.#remove(now),
              tone: "danger",
            },
          ]
        : undefined,
    });
  }

  async #remove({ vhost, name }) {
    const act = () => api.remove(api.path(this.#path, vhost, name));
    const text = `What it applied to in ${vhost} gets the next policy that fits, or none.`;
    if (
      await ask({
        title: `Delete the ${this.#one} ${name}?`,
        text,
        label: "Delete",
        done: `The ${this.#one} ${name} is deleted.`,
        act,
      })
    )
      await this.refresh();
  }

  #makeForm(keys) {
    return new Form({
      label: `Set ${this.#one}`,
      fields: [
        { name: "name", label: "Name", required: true },
        {
          name: "vhost",
          label: "Virtual host",
          type: "select",
          options: session.vhosts,
          value: session.usualVhost,
        },
        {
          name: "pattern",
          label: "Pattern",
          required: true,
          hint: "A regular expression for names, such as ^orders\\.",
        },
        {
          name: "apply-to",
          label: "Applies to",
          type: "select",
          options: this.#path === "policies" ? ["all", "queues", "exchanges"] : ["queues"],
        },
        {
          name: "priority",
          label: "Priority",
          type: "number",
          value: "0",
          hint: "Of several that fit, the highest applies.",
        },
        { name: "definition", label: "Definition", type: "table", suggestions: keys },
      ],
      submit: async ({ name, vhost, priority, ...policy }) => {
        await api.put(api.path(this.#path, vhost, name), { ...policy, priority: Number(priority) });
        await this.refresh();
        return `The ${this.#one} ${name} is set.`;
      },
    });
  }
}
