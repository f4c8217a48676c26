// One message with all it has: where it stands, headers and properties as tables, JSON in lines.

import { facts, table } from "./cells.js";
import { button, el, setText } from "./dom.js";
import { bytes, exchangeName, plural } from "./format.js";
import { setOut } from "./json_text.js";

const FACTS = [
  "Position",
  "State",
  "Held by",
  "Exchange",
  "Routing key",
  "Redelivered",
  "Expires",
  "Properties",
  "Headers",
  "Payload",
];

/** `shownBytes` is how much of a payload was asked for; `tools` stand above the facts. */
export function messageBox(message, { label, shownBytes, tools = null }) {
  const about = facts(FACTS);
  const { headers, ...properties } = Array.isArray(message.properties) ? {} : message.properties;
  const cut =
    message.payload_bytes > shownBytes ? `, the first ${bytes(shownBytes)} shown` : "";
  about.set({
    Position: message.position ?? null,
    State: message.state ?? null,
    "Held by": holder(message),
    Exchange: exchangeName(message.exchange),
    "Routing key": message.routing_key,
    Redelivered: message.redelivered ? "yes" : "no",
    Expires:
      message.expires_in_ms === undefined
        ? null
        : `in ${plural(Math.ceil(message.expires_in_ms / 1000), "second")}`,
    Properties: table(properties),
    Headers: table(headers),
    Payload: `${bytes(message.payload_bytes)}, ${message.payload_encoding === "string" ? "text" : "Base64"}${cut}`,
  });
  return el(
    "article",
    { class: "message", "aria-label": label },
    tools,
    about.element,
    payload(message),
  );
}

function holder({ held_by: held }) {
  if (!held) return null;
  const who = held.consumer_tag === null ? "basic.get" : `consumer ${held.consumer_tag}`;
  const seconds = Math.floor((held.held_for_at_least_ms ?? 0) / 1000);
  const since = seconds ? `, for at least ${plural(seconds, "second")}` : "";
  return `${who} of ${held.connection_name}, channel ${held.channel}${since}`;
}

/** The body; a JSON text in lines, and as it came where somebody wants that. */
function payload(message) {
  const body = el("pre", { tabindex: "0", "aria-label": "Payload" }, message.payload);
  const lines = message.payload_encoding === "string" ? setOut(message.payload) : null;
  if (lines === null || lines === message.payload) return body;
  setText(body, lines);
  const swap = button("Show as sent", () => {
    const asSent = body.textContent === lines;
    setText(body, asSent ? message.payload : lines);
    setText(swap, asSent ? "Show in lines" : "Show as sent");
  }, { class: "small" });
  return [body, el("p", { class: "payload-tools" }, swap)];
}
