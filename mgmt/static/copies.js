// What is to be said of the copies of a mirrored queue. Pure: from the node's answers to sentences.

import { plural } from "./format.js";

/** Node and state of each copy; where the ring is not known, of those the definition names. */
export function copiesOf(queue) {
  if (queue.mirror_ring?.length) return queue.mirror_ring;
  const inSync = new Set(queue.synchronised_slave_nodes);
  const state = (node) =>
    inSync.has(node) ? "in_sync" : queue.sync_progress?.[node] ? "syncing" : "out_of_sync";
  return [
    { node: queue.node, state: "leader" },
    ...queue.slave_nodes.map((node) => ({ node, state: state(node) })),
  ];
}

/** How many mirrors the policy asks for; `members` are those of the cluster, down or not. */
export function mirrorsWanted(queue, members) {
  const { "ha-mode": mode, "ha-params": parameters } = queue.effective_policy_definition ?? {};
  if (mode === "all") return members - 1;
  if (mode === "exactly") return Math.min(parameters, members) - 1;
  return mode === "nodes" ? parameters.length - 1 : 0;
}

/** What all that means, in a sentence. `members` is how many nodes the cluster has. */
export function verdict(queue, members = 0) {
  const mirrors = queue.slave_nodes;
  const inSync = new Set(queue.synchronised_slave_nodes);
  const lacking = mirrors.filter((node) => !inSync.has(node));
  if (!mirrors.length)
    return { tone: "warn", text: "There is no mirror: the messages are at the leader alone." };
  const missing = mirrorsWanted(queue, members) - mirrors.length;
  if (!lacking.length && missing > 0)
    return {
      tone: "warn",
      text: `${plural(missing, "mirror is", "mirrors are")} missing, for ${missing === 1 ? "its node is" : "their nodes are"} down or cannot have one yet; ${mirrors.length === 1 ? "the other one is" : "the others are"} in sync.`,
    };
  if (!lacking.length) return { tone: "good", text: "All mirrors are in sync." };
  if (lacking.every((node) => queue.sync_progress?.[node]))
    return {
      tone: "warn",
      text: "What mirrors lack is being sent to them; until then it is lost with the copies that have it.",
    };
  if (!inSync.size)
    return {
      tone: "bad",
      text: "No mirror is in sync: what is older than the mirrors is at the leader alone.",
    };
  return {
    tone: "warn",
    text: `Not in sync: ${lacking.join(", ")}. What is older than that is at the other copies.`,
  };
}
