// Getting messages out of a queue to look at them.

import * as api from "./api.js";
import { el, setText } from "./dom.js";
import { plural } from "./format.js";
import { Form } from "./forms.js";
import { messageBox } from "./message_box.js";

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
      list.replaceChildren(
        ...messages.map((message, at) =>
          messageBox(message, { label: `Message ${at + 1}`, shownBytes: SHOWN_BYTES_MAX }),
        ),
      );
      got();
    },
  });
  return el("div", {}, form.element, summary, list);
}
