// How a member of the cluster is, as badges and in sentences.

const STATES = {
  running: ["running", "good"],
  paused: ["paused", "warn", "It has lost etcd, serves nobody, and waits until etcd is back."],
  unreachable: ["unreachable", "bad", "It runs, as etcd says, and cannot be reached from here."],
  silent: ["silent", "bad", "It is linked, and does not answer."],
  down: ["down", "bad", "It does not run."],
};

/** Badges; those of what a node that runs cannot reach among them. */
export function stateBadges(node) {
  const [text, tone, title] = STATES[node.state] ?? (node.running ? STATES.running : STATES.down);
  const why = !node.running && node.reason ? `It does not run: ${node.reason}.` : title;
  const badges = [{ text, tone, title: why }];
  if (node.being_drained) badges.push({ text: "maintenance", tone: "warn" });
  for (const other of node.partitions ?? []) {
    badges.push({ text: `cannot reach ${other}`, tone: "bad" });
  }
  return badges;
}

/** What somebody should know at once; `seenFrom` is the node that was asked. */
export function memberWarnings(nodes, seenFrom) {
  return nodes.flatMap((node) => {
    if (node.running) {
      return [
        ...(node.partitions ?? []).map((other) => `Node ${node.name} cannot reach ${other}.`),
        ...storeWarnings(node),
      ];
    }
    if (node.state === "paused")
      return [`Node ${node.name} has paused: it has lost etcd, and waits until that is back.`];
    if (node.state === "unreachable")
      return [`Node ${node.name} runs and cannot be reached from ${seenFrom}.`];
    if (node.state === "silent") return [`Node ${node.name} does not answer.`];
    return [`Node ${node.name} is down${node.reason ? `: ${node.reason}` : ""}.`];
  });
}

/** Whose publishers an alarm blocks, where its node says so. */
export function blockedPublishers({ alarms_block: blocks, blocking_queues: queues = [] }) {
  if (blocks !== "growing") return "publishers are blocked";
  const names = queues.map((queue) => queue.name).join(", ");
  return `publishers to queues that grow are blocked${names ? ` (${names})` : ""}`;
}

/** The same with alarms, the weightiest first: what every page shows. */
export function clusterWarnings(nodes, seenFrom) {
  const alarms = nodes.flatMap((node) => [
    ...(node.mem_alarm ? [`Memory alarm on ${node.name}: ${blockedPublishers(node)}.`] : []),
    ...(node.disk_free_alarm ? [`Disk alarm on ${node.name}: ${blockedPublishers(node)}.`] : []),
  ]);
  return [...memberWarnings(nodes, seenFrom), ...alarms];
}

/** What a node keeps on disk and cannot use until somebody sees to it. */
function storeWarnings(node) {
  const warnings = [];
  const messages = node.unclaimed_messages?.messages;
  if (messages) {
    warnings.push(
      `Node ${node.name} keeps ${messages} messages of queues that no definition names: see warren ctl list_unclaimed_messages.`,
    );
  }
  if (node.unreadable_definitions) {
    warnings.push(
      `Node ${node.name} passes over ${node.unreadable_definitions} definitions that it cannot read: see warren ctl list_unreadable_definitions.`,
    );
  }
  return warnings;
}
