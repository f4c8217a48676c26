// Says in plain words why a queue holds messages. Pure: from the node's answers to sentences.

import { bytes, count, duration, plural, rate } from "./format.js";
import { blockedPublishers } from "./node_state.js";

/** Octets owed to a connection from which the node leaves its consumers out. */
export const OWED_MAX = 256 * 1024;
// Below this, a difference of rates is noise.
const RATE_MIN = 0.2;
/** How messages go that no consumer takes. */
const LOSSES = [
  ["messages_expired", "expire"],
  ["messages_dropped", "are dropped for the length limit"],
  ["messages_rejected", "are rejected"],
  ["messages_refused", "are refused"],
  ["messages_purged", "are purged"],
];

/**
 * `queue` is the node's answer with consumer_details; `channels` and `connections` are the rows of
 * its consumers, as far as they may be seen; `nodes` those of a monitor, else empty.
 *
 * Answers `{code, tone, text}`, the weightiest first; tones are bad, warn, good and plain.
 */
export function explainQueue({ queue, channels = [], connections = [], nodes = [] }) {
  if (queue.state === "down") return [ofDown(queue)];
  const ready = queue.messages_ready ?? 0;
  const unacked = queue.messages_unacknowledged ?? 0;
  if (queue.delays) return [ofDelays(queue, ready)];
  const facts = { queue, channels, connections, nodes, ready, unacked, ...flows(queue) };
  const findings = queue.type === "stream" && ready ? ofStream(facts) : ofQueue(facts);
  if (ready || unacked) return findings;
  return [
    ...findings,
    finding("empty", "good", "The queue is empty: there is nothing to explain."),
  ];
}

/** Consumers take nothing away from a stream, and those that are slow hold nothing up. */
function ofStream(facts) {
  return [
    ...ofAlarms(facts),
    ofRetention(facts),
    ...ofSockets(facts),
    ...ofPrefetch(facts),
    ...ofPublishers(facts),
  ];
}

function ofRetention({ queue, ready }) {
  const policy = queue.effective_policy_definition ?? {};
  const age = queue.arguments?.["x-max-age"] ?? policy["max-age"];
  const octets = queue.arguments?.["x-max-length-bytes"] ?? policy["max-length-bytes"];
  const ends = [
    age && `they are older than ${age}`,
    Number.isFinite(octets) && `all together have more than ${bytes(octets)}`,
  ].filter(Boolean);
  const until = ends.length
    ? `until ${ends.join(", or ")}`
    : "for good, as neither max-age nor max-length-bytes limits it";
  const stay = plural(ready, "message stays", "messages stay");
  const text = `Reading takes nothing away from a stream: ${stay} ${until}.`;
  return finding("stream", "plain", text);
}

function ofQueue(facts) {
  const { ready, unacked } = facts;
  const findings = [
    ...ofAlarms(facts),
    ...(ready ? [...ofConsumers(facts), ...ofSockets(facts), ...ofPrefetch(facts)] : []),
    // All that consumers give back may be with them again at the moment.
    ...(ready || unacked ? ofReturns(facts) : []),
    ...ofUnacked(facts),
    ...(ready ? [...ofRates(facts), ...ofStorage(facts)] : []),
    ...ofLimits(facts),
    ...ofDeadLetters(facts),
    ...ofPublishers(facts),
  ];
  // That consumers are full explains why nothing moves.
  const full = findings.some(({ code }) => code === "prefetch");
  return findings.filter(({ code }) => !(full && code === "stuck"));
}

function ofDown(queue) {
  const waitsForOthers = queue.waits_for && queue.waits_for !== `its leader ${queue.node}`;
  if (waitsForOthers) {
    return finding("down", "bad", `No node that can be reached leads the queue. It waits for ${queue.waits_for}.`);
  }
  const copies = queue.slave_nodes?.length
    ? ", or one of the mirrors takes its place"
    : queue.members?.length > 1
      ? ", or another member takes its place"
      : "";
  const text = `Node ${queue.node}, which has the queue, is down or cannot be reached: the queue cannot be used until it is back${copies}.`;
  return finding("down", "bad", text);
}

function ofDelays(queue, ready) {
  const text = `Delayed messages of the exchange ${queue.delays} wait here until they are due: ${plural(ready, "message")}.`;
  return finding("delays", "good", text);
}

function finding(code, tone, text) {
  return { code, tone, text };
}

/** What comes in a second, what goes out and how, and what that makes the length grow by. */
export function flows(queue) {
  const stats = queue.message_stats ?? {};
  const of = (name) => stats[`${name}_details`]?.rate ?? 0;
  // What is delivered or fetched without acknowledgement is gone at once.
  const out = of("ack") + of("deliver_no_ack") + of("get_no_ack");
  const incoming = of("publish");
  const losses = LOSSES.map(([name, told]) => [queue[`${name}_details`]?.rate ?? 0, told]).filter(
    ([pace]) => pace > 0,
  );
  const lost = losses.reduce((sum, [pace]) => sum + pace, 0);
  return {
    incoming,
    out,
    lost,
    // What is too rare to be worth a word counts all the same.
    losses: losses
      .filter(([pace]) => pace >= RATE_MIN)
      .map(([pace, told]) => `${rate(pace)} ${told}`),
    growth: incoming - out - lost,
    delivered: of("deliver") + of("deliver_no_ack"),
    redelivered: of("redeliver"),
  };
}

function ofAlarms({ nodes }) {
  return nodes.flatMap((node) => [
    ...(node.mem_alarm
      ? [
          finding(
            "memory-alarm",
            "bad",
            `Node ${node.name} is short of memory (${bytes(node.mem_used)} of ${bytes(node.mem_limit)}): ${blockedPublishers(node)} until it has recovered. Consumers go on.`,
          ),
        ]
      : []),
    ...(node.disk_free_alarm
      ? [
          finding(
            "disk-alarm",
            "bad",
            `Node ${node.name} is short of disk space (${bytes(node.disk_free)} free, ${bytes(node.disk_free_limit)} wanted): ${blockedPublishers(node)} until there is more.${ofSnapshots(node)}`,
          ),
        ]
      : []),
  ]);
}

function ofSnapshots({ disk_free: free, disk_free_limit: wanted, disk_pinned: pinned }) {
  return pinned && free + pinned >= wanted
    ? ` Snapshots keep ${bytes(pinned)} of what the node has removed: release them (warren export snapshot list).`
    : "";
}

function ofConsumers({ queue, ready, growth, losses }) {
  const consumers = queue.consumer_details ?? [];
  const number = queue.consumers ?? consumers.length;
  if (!number) {
    const grows = growth >= RATE_MIN ? ` It grows by ${rate(growth)}.` : "";
    const lost = losses.length ? ` ${sentence(losses.join(", "))}.` : "";
    return [finding("no-consumers", "bad", `No consumers: ${waits(ready)}.${grows}${lost}`)];
  }
  if (number > 1 && consumers.some(({ activity_status: status }) => status === "single_active")) {
    const tag = queue.single_active_consumer_tag ?? queue.single_active_consumer_ctag;
    return [
      finding(
        "single-active",
        "warn",
        `Single active consumer: only "${tag}" gets messages, the other ${number - 1} wait to take over. More consumers do not make it faster.`,
      ),
    ];
  }
  if (number === 1 && queue.exclusive_consumer_tag) {
    return [
      finding(
        "exclusive-consumer",
        "plain",
        `The one consumer, "${queue.exclusive_consumer_tag}", is exclusive: no other can help it.`,
      ),
    ];
  }
  return [];
}

function sentence(text) {
  return text[0].toUpperCase() + text.slice(1);
}

function waits(ready) {
  return ready === 1
    ? "1 message waits and nobody takes it"
    : `${count(ready)} messages wait and nobody takes them`;
}

function ofSockets({ queue, connections }) {
  const names = new Set(
    (queue.consumer_details ?? []).map((one) => one.channel_details?.connection_name),
  );
  const slow = connections.filter((one) => names.has(one.name) && one.send_pend >= OWED_MAX);
  if (!slow.length) return [];
  const owed = bytes(Math.max(...slow.map((one) => one.send_pend)));
  const who =
    slow.length === 1
      ? `Connection ${slow[0].name} of a consumer does`
      : `${slow.length} connections of consumers do`;
  return [
    finding(
      "slow-socket",
      "bad",
      `${who} not read what is sent (up to ${owed} wait in its socket): the client or its network is slow.`,
    ),
  ];
}

function ofPrefetch({ queue, channels, unacked, out, growth }) {
  const consumers = (queue.consumer_details ?? []).filter(
    (one) => one.ack_required && one.active !== false,
  );
  if (!consumers.length || !unacked) return [];
  const byName = new Map(channels.map((channel) => [channel.name, channel]));
  const full = consumers.filter((one) => {
    const channel = byName.get(one.channel_details?.name);
    const limit = channel?.global_prefetch_count ?? 0;
    return limit > 0 && channel.messages_unacknowledged >= limit;
  });
  const limits = consumers.map((one) => one.prefetch_count);
  const sum = limits.reduce((total, limit) => total + limit, 0);
  const atLimit = limits.every((limit) => limit > 0) && unacked >= sum;
  if (!atLimit && full.length < consumers.length) return [];
  const what = atLimit
    ? `Every consumer is at its prefetch: ${plural(unacked, "message is", "messages are")} unacknowledged, and the prefetches allow ${count(sum)}.`
    : "The channels of all consumers are at their global prefetch.";
  // Busy consumers that catch up are as they should be.
  if (out >= RATE_MIN && growth <= -RATE_MIN) {
    return [finding("prefetch", "plain", `${what} Their acknowledgements set the pace.`)];
  }
  return [
    finding(
      "prefetch",
      "bad",
      `${what} Acknowledgements are too slow; a larger prefetch helps only if consumers wait for the network.`,
    ),
  ];
}

function ofReturns({ delivered, redelivered }) {
  if (redelivered < RATE_MIN || redelivered < delivered / 2) return [];
  return [
    finding(
      "returned",
      "bad",
      `Most deliveries are repeated (${rate(redelivered)} of ${rate(delivered)}): consumers give messages back, or fail while they have them. A delivery that cannot succeed should be rejected without requeueing.`,
    ),
  ];
}

function ofUnacked({ ready, unacked, out }) {
  if (ready || !unacked) return [];
  const pace =
    out >= RATE_MIN ? `; ${rate(out)} are acknowledged` : ", and none was acknowledged lately";
  return [
    finding(
      "unacked",
      "plain",
      `Everything is delivered. ${plural(unacked, "message waits", "messages wait")} for acknowledgement by ${unacked === 1 ? "its consumer" : "consumers"}${pace}.`,
    ),
  ];
}

function ofRates({ queue, incoming, out, lost, losses, growth, ready }) {
  // Of a queue without consumers that was said already.
  if (!queue.consumers && out < RATE_MIN) return [];
  const flow = [`${rate(incoming)} come in`, `${rate(out)} are taken for good`, ...losses].join(
    ", ",
  );
  if (growth >= Math.max(RATE_MIN, incoming * 0.02)) {
    return [
      finding(
        "growing",
        "bad",
        `Acknowledgements are slower than publishes: ${flow}. The queue grows by ${rate(growth)}.`,
      ),
    ];
  }
  if (growth <= -Math.max(RATE_MIN, incoming * 0.02)) {
    const tone = out >= lost ? "good" : "warn";
    return [
      finding(
        "shrinking",
        tone,
        `The backlog shrinks: ${flow}. At this pace it is gone in ${duration((ready / -growth) * 1000)}.`,
      ),
    ];
  }
  if (losses.length) {
    return [
      finding(
        "losing",
        "warn",
        `The queue keeps its length, but not because consumers keep up: ${flow}.`,
      ),
    ];
  }
  if (incoming >= RATE_MIN) {
    return [
      finding(
        "steady",
        "warn",
        `Consumers keep up with what comes in (${rate(incoming)}), but do not reduce the backlog.`,
      ),
    ];
  }
  return [
    finding(
      "stuck",
      "warn",
      "Nothing comes in and nothing is acknowledged: look at what the consumers do.",
    ),
  ];
}

function ofStorage({ queue }) {
  const out = queue.messages_paged_out ?? 0;
  if (queue.backing_queue_status?.mode === "lazy") {
    return [
      finding(
        "lazy",
        "plain",
        `The queue is lazy: messages (${count(out)}) are kept on disk and read when a consumer wants them. It costs little memory and some speed.`,
      ),
    ];
  }
  if (!out) return [];
  return [
    finding(
      "paged-out",
      "plain",
      `${plural(out, "message was", "messages were")} paged out to disk to save memory; they are read again before they are delivered.`,
    ),
  ];
}

function ofLimits({ queue, ready }) {
  const definition = queue.effective_policy_definition ?? {};
  const limits = [queue.arguments?.["x-max-length"], definition["max-length"]].filter(
    Number.isFinite,
  );
  const most = Math.min(...limits);
  if (!limits.length || ready < most) return [];
  const overflow = queue.arguments?.["x-overflow"] ?? definition.overflow ?? "drop-head";
  const then =
    overflow === "drop-head" ? "each new message drops the oldest one" : "new messages are refused";
  return [
    finding("max-length", "warn", `The queue is at its maximum length of ${count(most)}: ${then}.`),
  ];
}

function ofDeadLetters({ queue }) {
  const kept = queue.messages_dlx ?? 0;
  if (!kept) return [];
  return [
    finding(
      "dead-letters-kept",
      "warn",
      `${plural(kept, "dead letter is", "dead letters are")} kept until every queue that the dead letter exchange routes to has taken ${kept === 1 ? "it" : "them"}. If none does, look at the bindings of that exchange, and at whether those queues are full.`,
    ),
  ];
}

function ofPublishers({ connections }) {
  const held = connections.filter((one) => one.state === "flow" || one.state === "blocked");
  if (!held.length) return [];
  const why = held.some((one) => one.state === "blocked")
    ? "blocked by an alarm"
    : "held back until the disk has caught up";
  return [
    finding(
      "held-back",
      "warn",
      `${plural(held.length, "connection is", "connections are")} ${why}.`,
    ),
  ];
}
