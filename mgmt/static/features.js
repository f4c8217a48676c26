// Short badges for how a queue or an exchange was declared, and what policies add to it.

import { pairs } from "./format.js";

/** The badge, the argument, the key in policies, and what it means; `%` stands for the value. */
const BADGES = [
  ["TTL", "x-message-ttl", "message-ttl", "messages live % ms"],
  ["Exp", "x-expires", "expires", "deleted when unused for % ms"],
  ["Lim", "x-max-length", "max-length", "% messages at most"],
  ["Lim B", "x-max-length-bytes", "max-length-bytes", "% bytes at most"],
  ["Ovfl", "x-overflow", "overflow", "when it is full: %"],
  ["DLX", "x-dead-letter-exchange", "dead-letter-exchange", "dead letters go to the exchange %"],
  ["DLK", "x-dead-letter-routing-key", "dead-letter-routing-key", "dead letters have the key %"],
  ["Pri", "x-max-priority", null, "priorities up to %"],
  ["SAC", "x-single-active-consumer", null, "one active consumer at a time"],
  ["Lazy", "x-queue-mode", "queue-mode", "messages are kept on disk"],
  ["Age", "x-max-age", "max-age", "messages are kept for %"],
  ["DLim", "x-delivery-limit", "delivery-limit", "a message may come back % times"],
  ["Wait", "x-redelivery-delay", "redelivery-delay", "returns wait for % ms"],
  ["Dedup", "x-message-deduplication-window", null, "each of the last % message ids is taken once"],
  ["Keep", null, "retention", "acknowledged messages are kept: %"],
  ["AE", "alternate-exchange", "alternate-exchange", "what matches no binding goes to %"],
];
/** Shown in another way, or without a meaning of their own. */
const SHOWN_OTHERWISE = new Set(["x-queue-type"]);
/** Nothing to show: the same as without. */
const NOTHING = { "x-queue-mode": "default", "x-single-active-consumer": false };

export function features(row) {
  const badges = [];
  const badge = (text, title, tone = "plain") => badges.push({ text, title, tone });
  if (row.type === "quorum") badge("Quorum", "a quorum queue");
  if (row.type === "stream") badge("Stream", "a stream: messages stay when they were read");
  if (row.durable) badge("D", "durable");
  if (row.auto_delete) badge("AD", "auto-delete");
  if (row.internal) badge("I", "internal: only other exchanges publish to it");
  if (row.delays) badge("Delay", `delayed messages of the exchange ${row.delays} wait here`);
  if (row.exclusive) badge("Excl", "exclusive to one connection");
  const declared = row.arguments ?? {};
  const policy = row.effective_policy_definition ?? {};
  const known = new Set(SHOWN_OTHERWISE);
  for (const [text, argument, key, meaning] of BADGES) {
    known.add(argument);
    const own = declared[argument];
    const value = own ?? policy[key];
    if (value === undefined || value === NOTHING[argument]) continue;
    const isTable = typeof value === "object" && !Array.isArray(value);
    const shown = isTable ? pairs(value) : value;
    const title = `${meaning.replace("%", shown)}${own === undefined ? ", by a policy" : ""}`;
    badge(text, title);
  }
  const others = Object.entries(declared).filter(([name]) => !known.has(name));
  if (others.length) badge("Args", JSON.stringify(Object.fromEntries(others)));
  return badges;
}
