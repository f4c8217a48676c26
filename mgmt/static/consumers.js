// The list of consumers of a channel or a queue.

import { to } from "./cells.js";
import { channelLink } from "./columns.js";
import { pairs } from "./format.js";
import { DataTable } from "./table.js";

const ACTIVITY_TONES = { up: "good", single_active: "good", waiting: "plain" };

export function consumersTable({ id, ofQueue = false }) {
  const where = ofQueue
    ? { id: "channel", label: "Channel", cell: (row) => channelLink(row.channel_details) }
    : {
        id: "queue",
        label: "Queue",
        cell: (row) => ({ text: row.queue.name, href: to.queue(row.queue.vhost, row.queue.name) }),
      };
  return new DataTable({
    id,
    caption: "Consumers",
    brief: true,
    empty: "No consumers.",
    key: (row) => `${row.channel_details?.name} ${row.consumer_tag}`,
    columns: [
      {
        id: "tag",
        label: "Tag",
        value: (row) => row.consumer_tag,
        cell: (row) => row.consumer_tag,
      },
      where,
      { id: "ack", label: "Acknowledges", cell: (row) => (row.ack_required ? "yes" : "no") },
      { id: "exclusive", label: "Exclusive", cell: (row) => (row.exclusive ? "yes" : "no") },
      {
        id: "prefetch",
        label: "Prefetch",
        numeric: true,
        value: (row) => row.prefetch_count,
        cell: (row) => (row.prefetch_count ? row.prefetch_count : "no limit"),
      },
      {
        id: "activity",
        label: "Activity",
        cell: (row) => ({
          text: row.activity_status.replace("_", " "),
          tone: ACTIVITY_TONES[row.activity_status] ?? "plain",
        }),
      },
      { id: "arguments", label: "Arguments", wrap: true, cell: (row) => pairs(row.arguments) },
    ],
  });
}
