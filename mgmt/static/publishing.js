// The form that publishes a message.

import * as api from "./api.js";
import { Form } from "./forms.js";

const PROPERTIES = [
  "content_type",
  "content_encoding",
  "priority",
  "correlation_id",
  "reply_to",
  "expiration",
  "message_id",
  "timestamp",
  "type",
  "user_id",
  "app_id",
  "cluster_id",
];
const NUMBERS = { priority: 0, timestamp: 0 };

/** `exchange` is where to; `key` is fixed where a queue is meant, as the default exchange routes. */
export function publishForm({ vhost, exchange, key, published }) {
  const routing = key === undefined ? [{ name: "key", label: "Routing key" }] : [];
  return new Form({
    label: "Publish message",
    keep: true,
    fields: [
      ...routing,
      { name: "payload", label: "Payload", type: "textarea" },
      {
        name: "encoding",
        label: "The payload is",
        type: "select",
        options: [
          { value: "string", label: "text" },
          { value: "base64", label: "Base64 of octets" },
        ],
      },
      { name: "persistent", label: "Persistent", type: "checkbox", value: true },
      { name: "headers", label: "Headers", type: "table" },
      {
        name: "properties",
        label: "Properties",
        type: "table",
        suggestions: PROPERTIES.map((name) => ({ key: name, value: NUMBERS[name] ?? "" })),
      },
    ],
    submit: async (values) => {
      const properties = { ...values.properties, delivery_mode: values.persistent ? 2 : 1 };
      if (Object.keys(values.headers).length) properties.headers = values.headers;
      const answer = await api.post(`${api.exchangePath(vhost, exchange)}/publish`, {
        properties,
        routing_key: key ?? values.key,
        payload: values.payload,
        payload_encoding: values.encoding,
      });
      if (!answer.routed)
        throw new Error("The message was taken, but no queue wanted it: it is gone.");
      published?.();
      return "The message is published.";
    },
  });
}
