// The list of exchanges, and declaring one.

import * as api from "./api.js";
import { to } from "./cells.js";
import { featuresColumn, pace, policyColumn, vhostColumn, words } from "./columns.js";
import { el, folded } from "./dom.js";
import { exchangeName } from "./format.js";
import { Form } from "./forms.js";
import { session } from "./session.js";
import { DataTable } from "./table.js";

/** The types the node knows. */
async function exchangeTypes() {
  const { exchange_types: types } = await api.get("overview", {
    query: { columns: "exchange_types" },
  });
  return types.filter((type) => !type.internal_purpose).map((type) => type.name);
}

export function exchangesPage() {
  const table = new DataTable({
    id: "exchanges",
    addressed: true,
    caption: "Exchanges",
    empty: "No exchanges.",
    key: (row) => `${row.vhost} ${row.name}`,
    load: (query) => api.get("exchanges", { query, vhost: session.vhost }),
    columns: [
      words("name", "Name", {
        cell: (row) => ({ text: exchangeName(row.name), href: to.exchange(row.vhost, row.name) }),
      }),
      vhostColumn(),
      words("type", "Type"),
      featuresColumn,
      policyColumn(),
      pace("in", "In", "publish_in"),
      pace("out", "Out", "publish_out"),
    ],
  });
  const declare = el("div");
  let ready = false;
  const refresh = async () => {
    await table.refresh();
    if (ready) return;
    declare.append(declareForm(await exchangeTypes(), () => table.refresh()).element);
    ready = true;
  };
  const element = el(
    "div",
    { class: "page" },
    table.element,
    folded("Declare an exchange", declare),
  );
  return { title: "Exchanges", call: "exchanges", element, refresh };
}

function declareForm(types, declared) {
  return new Form({
    label: "Declare exchange",
    fields: [
      {
        name: "vhost",
        label: "Virtual host",
        type: "select",
        options: session.vhosts,
        value: session.usualVhost,
      },
      { name: "name", label: "Name", required: true },
      { name: "type", label: "Type", type: "select", options: types, value: "direct" },
      { name: "durable", label: "Durable: it survives a restart", type: "checkbox", value: true },
      { name: "auto_delete", label: "Auto-delete: gone with its last binding", type: "checkbox" },
      { name: "internal", label: "Internal: only exchanges publish to it", type: "checkbox" },
      {
        name: "arguments",
        label: "Arguments",
        type: "table",
        suggestions: [
          { key: "alternate-exchange", title: "where messages go that match no binding" },
          {
            key: "x-delayed-type",
            value: "direct",
            title: "type x-delayed-message: the type by whose rules it routes",
          },
          {
            key: "x-recent-history-length",
            value: 20,
            title: "type x-recent-history: how many messages a newly bound queue gets",
          },
        ],
      },
    ],
    submit: async ({ vhost, name, ...declaration }) => {
      await api.put(api.exchangePath(vhost, name), declaration);
      await declared();
      return `The exchange ${name} is declared.`;
    },
  });
}
