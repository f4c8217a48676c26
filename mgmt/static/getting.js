// Getting messages out of a queue to look at them.

import * as api from "./api.js";
import { facts, table } from "./cells.js";
import { button, el, setText } from "./dom.js";
import { bytes, exchangeName, plural } from "./format.js";
import { Form } from "./forms.js";
import { setOut } from "./json_text.js";

const MODES = [
  { value: "ack_requeue_true", label: "Put back (they become redelivered)" },
  { value: "ack_requeue_false", label: "Take out: acknowledge" },
  { value: "reject_requeue_true", label: "Reject and put back" },
  { value: "reject_requeue_false", label: "Take out: reject (dead-letters them)" },
];
const SHOWN_BYTES_MAX = 50_000;

/** The form and what it got. `where` is the queue's path. */
export function getMessages(where, got) {
  const summary = el("p", { class: "got-summary", role: "status" });
  const list = el("div", { class: "got" });
  const form = new Form({
    label: "Get messages",
    keep: true,
    fields: [
      { name: "ackmode", label: "What becomes of them", type: "select", options: MODES },
      {
        name: "encoding",
        label: "Show payloads as",
        type: "select",
        options: [
          { value: "auto", label: "text where they are text" },
          { value: "base64", label: "Base64" },
        ],
      },
      { name: "count", label: "Messages", type: "number", value: "1", min: 1, required: true },
    ],
    submit: async ({ ackmode, encoding, count }) => {
      const messages = await api.post(`${where}/get`, {
        ackmode,
        encoding,
        count: Number(count),
        truncate: SHOWN_BYTES_MAX,
      });
      setText(
        summary,
        messages.length
          ? `${plural(messages.length, "message")}, ${messages.at(-1).message_count} more in the queue.`
          : "The queue is empty.",
      );
      list.replaceChildren(...messages.map(messageBox));
      got();
    },
  });
  return el("div", {}, form.element, summary, list);
}

function messageBox(message, at) {
  const about = facts([
    "Exchange",
    "Routing key",
    "Redelivered",
    "Properties",
    "Headers",
    "Payload",
  ]);
  const { headers, ...properties } = Array.isArray(message.properties) ? {} : message.properties;
  const cut =
    message.payload_bytes > SHOWN_BYTES_MAX ? `, the first ${bytes(SHOWN_BYTES_MAX)} shown` : "";
  about.set({
    Exchange: exchangeName(message.exchange),
    "Routing key": message.routing_key,
    Redelivered: message.redelivered ? "yes" : "no",
    Properties: table(properties),
    Headers: table(headers),
    Payload: `${bytes(message.payload_bytes)}, ${message.payload_encoding === "string" ? "text" : "Base64"}${cut}`,
  });
  return el(
    "article",
    { class: "message", "aria-label": `Message ${at + 1}` },
    about.element,
    payload(message),
  );
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
