// One queue: why it holds what it holds, charts, states, consumers, bindings, messages, policy.

import * as api from "./api.js";
import { BackingBar } from "./backing.js";
import { bindingsTable, bindQueueForm } from "./bindings.js";
import { facts, nodeLink, table, to } from "./cells.js";
import { Chart } from "./chart.js";
import { consumersTable } from "./consumers.js";
import { ask } from "./deleting.js";
import { explainQueue } from "./diagnosis.js";
import { button, el, folded, section } from "./dom.js";
import { features } from "./features.js";
import { bytes, count, moment, plural, rate, short } from "./format.js";
import { getMessages } from "./getting.js";
import { History } from "./history.js";
import { MirrorsPart } from "./mirrors.js";
import { queueState } from "./page_queues.js";
import { moveMessagesForm } from "./page_shovels.js";
import { publishForm } from "./publishing.js";
import { RangeChoice } from "./range.js";
import { go } from "./router.js";
import { session } from "./session.js";

// Of more consumers, these tell enough.
const CONSUMERS_LOOKED_AT = 20;

const RATES = [
  ["publish", "Published"],
  ["deliver_get", "Delivered"],
  ["ack", "Acknowledged"],
  ["redeliver", "Redelivered"],
];
const LENGTHS = [
  ["messages", "Total"],
  ["messages_ready", "Ready"],
  ["messages_unacknowledged", "Unacknowledged"],
];
const FACTS = [
  "Virtual host",
  "Type",
  "Features",
  "State",
  "Policy",
  "Operator policy",
  "Effective policy",
  "Arguments",
  "Ready",
  "Unacknowledged",
  "Duplicates dropped",
  "Waiting to return",
  "Retained",
  "Total",
  "In memory",
  "Paged out",
  "First offset",
  "Next offset",
  "Dead letters kept",
  "Size of bodies",
  "Memory",
  "Consumers",
  "Consumer capacity",
  "Owner",
  "Node",
  "Members",
];

export function queuePage({ vhost, name }) {
  const where = api.path("queues", vhost, name);
  const about = facts(FACTS);
  const why = new Findings();
  const charts = new QueueCharts();
  const bar = new BackingBar();
  const consumers = consumersTable({ id: "queue-consumers", ofQueue: true });

  const refresh = async () => {
    const [queue, bound] = await Promise.all([
      api.get(where, { query: charts.query() }),
      api.get(`${where}/bindings`),
    ]);
    const around = await surroundings(queue);
    about.set(described(queue));
    if (session.isPolicymaker && moving.hidden) {
      moving.hidden = false;
      moving.append(movingPart(queue));
    }
    why.show(explainQueue({ queue, ...around }));
    mirrors.update(queue);
    bindings.showAll(bound);
    // Of a queue whose node is down nobody knows the rest.
    const isDown = queue.state === "down";
    for (const part of [states, consuming, charts.element]) part.hidden = isDown;
    if (isDown) return;
    // Of a quorum queue the node does not tell where they are.
    states.hidden = !queue.backing_queue_status;
    bar.update(queue.backing_queue_status ?? {}, queue.messages_unacknowledged);
    charts.update(queue, api.nodeNow());
    consumers.showAll(queue.consumer_details ?? []);
  };
  const bindings = bindingsTable({
    id: "queue-bindings",
    caption: "Bindings to this queue",
    end: "source",
    changed: refresh,
  });
  charts.range.changed = refresh;
  const mirrors = new MirrorsPart(where, refresh);
  const states = section("Where the messages are", bar.element);
  const consuming = section("Consumers", consumers.element);
  // It is filled when the type of the queue is known.
  const moving = el("div", { hidden: true });

  const purge = async () => {
    const text = `All ready messages of ${name} in ${vhost} are thrown away. What consumers have and not acknowledged stays.`;
    const act = () => api.remove(`${where}/contents`);
    if (
      await ask({
        title: "Purge this queue?",
        text,
        label: "Purge",
        done: `The queue ${name} is purged.`,
        act,
      })
    )
      refresh();
  };
  const remove = async () => {
    const text = `The queue ${name} in ${vhost}, its messages and its bindings are gone for good.`;
    const act = () => api.remove(where);
    if (
      await ask({
        title: "Delete this queue?",
        text,
        label: "Delete queue",
        done: `The queue ${name} is deleted.`,
        act,
      })
    )
      go("#/queues");
  };
  const element = el(
    "div",
    { class: "page" },
    section("Why it holds what it holds", why.element),
    mirrors.element,
    charts.element,
    states,
    section(
      "Messages",
      el(
        "p",
        {},
        el("a", { href: to.messages(vhost, name) }, "Look at messages, move or delete them"),
        ", replay what is retained, or send dead letters back",
      ),
    ),
    section("About", about.element, policyLink(vhost, name)),
    consuming,
    section(
      "Bindings",
      bindings.element,
      folded("Add a binding", bindQueueForm(vhost, name, refresh).element),
    ),
    folded(
      "Publish a message",
      el("p", { class: "hint" }, "It goes through the default exchange, to this queue."),
      publishForm({ vhost, exchange: "", key: name, published: refresh }).element,
    ),
    folded("Get messages", getMessages(where, refresh)),
    moving,
    el(
      "div",
      { class: "page-actions" },
      button("Purge messages", purge, { class: "danger" }),
      button("Delete queue", remove, { class: "danger" }),
    ),
  );
  return { title: `Queue ${name}`, vhost, call: where, thing: "queue", element, refresh };
}

/** A shovel moves what is in a queue, and copies what is in a stream. */
function movingPart({ vhost, name, type }) {
  const copies = type === "stream";
  const does = copies
    ? "A shovel copies what is in the stream now, and then ends."
    : "A shovel moves what is ready now, and then ends.";
  return folded(
    copies ? "Copy messages" : "Move messages",
    el("p", { class: "hint" }, does),
    moveMessagesForm({ vhost, name, copies }).element,
  );
}

/** The channels and connections of the consumers, as far as one may see them, and the nodes. */
async function surroundings(queue) {
  const details = (queue.consumer_details ?? [])
    .slice(0, CONSUMERS_LOOKED_AT)
    .map((one) => one.channel_details ?? {});
  const [channels, connections, nodes] = await Promise.all([
    named(
      "channels",
      details.map((one) => one.name),
    ),
    named(
      "connections",
      details.map((one) => one.connection_name),
    ),
    session.isMonitor
      ? api.get("nodes", {
          query: {
            columns: "name,mem_used,mem_limit,mem_alarm,disk_free,disk_free_limit,disk_free_alarm",
          },
        })
      : [],
  ]);
  return { channels, connections, nodes };
}

/** These things of a list. The list leaves out what one may not see, where one by one is refused. */
async function named(list, names) {
  const wanted = [...new Set(names.filter(Boolean))];
  if (!wanted.length) return [];
  const pattern = `^(${wanted.map((name) => name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})$`;
  const query = { page: 1, page_size: 100, name: pattern, use_regex: true };
  return (await api.get(list, { query })).items;
}

class Findings {
  element = el("ul", { class: "findings" });
  #known = "";

  show(findings) {
    const told = JSON.stringify(findings);
    if (told === this.#known) return;
    this.#known = told;
    this.element.replaceChildren(
      ...findings.map(({ code, tone, text }) =>
        el("li", { class: `finding ${tone}`, "data-code": code }, text),
      ),
    );
  }
}

class QueueCharts {
  range = new RangeChoice({ id: "queue" });
  #history = new History();
  #rates = new Chart({
    title: "Message rates",
    series: RATES.map(([id, label]) => ({ id, label })),
    format: rate,
  });
  #depth = new Chart({
    title: "Messages in the queue",
    series: LENGTHS.map(([id, label]) => ({ id, label })),
    format: short,
  });
  // The node keeps no history of it: the chart begins when the page is opened.
  #memory = new Chart({
    title: "Memory, since this page was opened",
    series: [
      { id: "memory", label: "Memory" },
      { id: "bodies", label: "Bodies in memory" },
    ],
    format: bytes,
    binary: true,
  });
  element = section(
    "Over time",
    this.range.element,
    el("div", { class: "charts" }, this.#depth.element, this.#rates.element, this.#memory.element),
  );

  query() {
    return { ...this.range.query("lengths"), ...this.range.query("msg_rates") };
  }

  update(queue, now) {
    const { ageS } = this.range;
    const stats = queue.message_stats ?? {};
    this.#rates.update(
      Object.fromEntries(
        RATES.map(([id]) => [id, this.#history.rates(id, stats[`${id}_details`], now)]),
      ),
      now,
      ageS,
    );
    this.#depth.update(
      Object.fromEntries(
        LENGTHS.map(([id]) => [
          id,
          this.#history.levels(id, queue[`${id}_details`], queue[id], now),
        ]),
      ),
      now,
      ageS,
    );
    const memory = this.#history.levels("memory", null, queue.memory, now);
    const bodies = this.#history.levels("bodies", null, queue.message_bytes_ram, now);
    this.#memory.update({ memory, bodies }, now, ageS);
  }
}

function described(queue) {
  const capacity = queue.consumer_capacity;
  const owner = queue.owner_pid_details?.name;
  return {
    "Virtual host": queue.vhost,
    Type: queue.type,
    Features: features(queue),
    State: queueState(queue),
    Policy:
      queue.policy && session.isPolicymaker
        ? { text: queue.policy, href: "#/policies" }
        : (queue.policy ?? null),
    "Operator policy": queue.operator_policy ?? null,
    "Effective policy": table(queue.effective_policy_definition),
    Arguments: table(queue.arguments),
    Ready: count(queue.messages_ready),
    Unacknowledged: count(queue.messages_unacknowledged),
    "Duplicates dropped":
      queue.deduplication === undefined ? null : count(queue.deduplication.duplicates),
    "Waiting to return": queue.messages_waiting === undefined ? null : count(queue.messages_waiting),
    Retained: queue.retained === undefined ? null : retained(queue.retained),
    Total: count(queue.messages),
    "In memory": queue.type === "classic" ? count(queue.messages_ram) : null,
    "First offset": queue.first_offset ?? null,
    "Next offset": queue.next_offset ?? null,
    "Paged out": count(queue.messages_paged_out),
    "Dead letters kept": queue.messages_dlx === undefined ? null : count(queue.messages_dlx),
    "Size of bodies": bytes(queue.message_bytes),
    Memory: bytes(queue.memory),
    Consumers: queue.consumers ?? null,
    "Consumer capacity":
      queue.consumers && Number.isFinite(capacity) ? `${Math.round(capacity * 100)} %` : null,
    Owner: owner ? { text: owner, href: to.connection(owner) } : null,
    Node: nodeLink(queue.node),
    Members: queue.members?.map((name) => memberBadge(name, queue)) ?? null,
  };
}

/** What is kept of acknowledged messages. */
function retained({ messages, octets, oldest }) {
  const since = oldest ? `, the oldest acknowledged ${moment(1000 * oldest)}` : "";
  return `${plural(messages, "acknowledged message")}, ${bytes(octets)}${since}`;
}

/** A member of a quorum queue or a stream: it leads, follows, or cannot be reached. */
function memberBadge(name, { node, online }) {
  if (!online.includes(name)) return { text: name, tone: "bad", title: "cannot be reached" };
  return { text: name, tone: "good", title: name === node ? "the leader" : "a follower" };
}

/** To the form for a policy of this queue alone, or of those with such names. */
function policyLink(vhost, name) {
  if (!session.isPolicymaker) return null;
  const pattern = `^${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`;
  const query = new URLSearchParams({ vhost, pattern, "apply-to": "queues" });
  return el("p", {}, el("a", { href: `#/policies?${query}` }, "Set a policy for this queue"));
}
