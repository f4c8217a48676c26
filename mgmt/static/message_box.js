// One message with all it has: where it stands, headers and properties as tables, JSON in lines.

import { facts, table } from "./cells.js";
import { button, el, setText } from "./dom.js";
import { bytes, exchangeName, moment, plural } from "./format.js";
import { setOut } from "./json_text.js";

const FIRST = ["Position", "State"];
const FACTS = [
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
  const when = times(message);
  const about = facts([...FIRST, ...Object.keys(when), ...FACTS]);
  const { headers, ...properties } = Array.isArray(message.properties) ? {} : message.properties;
  const cut =
    message.payload_bytes > shownBytes ? `, the first ${bytes(shownBytes)} shown` : "";
  about.set({
    Position: message.position ?? null,
    State: message.state ?? null,
    ...when,
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

/** When a returned message is ready again, and when one that is retained was acknowledged. */
function times({ ready_in_ms: readyIn, acknowledged_at: acknowledged }) {
  const known = {};
  if (readyIn !== undefined)
    known["Ready again"] = `in ${plural(Math.ceil(readyIn / 1000), "second")}`;
  if (acknowledged !== undefined) known.Acknowledged = moment(1000 * acknowledged);
  return known;
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
