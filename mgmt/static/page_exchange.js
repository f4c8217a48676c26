// One exchange: rates, bindings, publish, delete.

import * as api from "./api.js";
import { bindingsTable, bindToExchangeForm } from "./bindings.js";
import { facts, table } from "./cells.js";
import { Chart } from "./chart.js";
import { DelayedMessages, delayedCount } from "./delayed.js";
import { ask } from "./deleting.js";
import { button, el, folded, section } from "./dom.js";
import { features } from "./features.js";
import { exchangeName, rate } from "./format.js";
import { History } from "./history.js";
import { publishForm } from "./publishing.js";
import { RangeChoice } from "./range.js";
import { go } from "./router.js";

const RATES = [
  ["publish_in", "In"],
  ["publish_out", "Out"],
];

export function exchangePage({ vhost, name: named }) {
  const name = named === "amq.default" ? "" : named;
  const where = api.exchangePath(vhost, name);
  const history = new History();
  const range = new RangeChoice({ id: "exchange" });
  const about = facts(["Virtual host", "Type", "Features", "Arguments", "Policy", "Delayed"]);
  const rates = new Chart({
    title: "Message rates",
    series: RATES.map(([id, label]) => ({ id, label })),
    format: rate,
  });

  const refresh = async () => {
    const isDefault = name === "";
    const [row, from, into] = await Promise.all([
      api.get(where, { query: range.query("msg_rates") }),
      // All queues are bound to the default exchange: there is nothing to learn from the list.
      isDefault ? [] : api.get(`${where}/bindings/source`),
      isDefault ? [] : api.get(`${where}/bindings/destination`),
    ]);
    const now = api.nodeNow();
    about.set({
      "Virtual host": row.vhost,
      Type: row.type,
      Features: features(row),
      Arguments: table(row.arguments),
      Policy: row.policy ?? null,
      Delayed: delayedCount(row),
    });
    const stats = row.message_stats ?? {};
    rates.update(
      Object.fromEntries(RATES.map(([id]) => [id, history.rates(id, stats[`${id}_details`], now)])),
      now,
      range.ageS,
    );
    leaving.showAll(from);
    coming.showAll(into);
    await delayed.refresh(row);
  };
  range.changed = refresh;
  const leaving = bindingsTable({
    id: "bindings-from",
    caption: "Bindings from this exchange",
    end: "destination",
    changed: refresh,
  });
  const coming = bindingsTable({
    id: "bindings-to",
    caption: "Bindings to this exchange",
    end: "source",
    changed: refresh,
  });

  const delayed = new DelayedMessages({ where, changed: refresh });

  const remove = async () => {
    const text = `Messages published to ${named} in ${vhost} will be refused, and its bindings are gone.`;
    const act = () => api.remove(where);
    if (
      await ask({
        title: "Delete this exchange?",
        text,
        label: "Delete exchange",
        done: `The exchange ${named} is deleted.`,
        act,
      })
    )
      go("#/exchanges");
  };
  const ordinary = name !== "" && !name.startsWith("amq.");
  const bindings = name
    ? [
        section(
          "Bindings from this exchange",
          leaving.element,
          folded("Add a binding", bindToExchangeForm(vhost, name, refresh).element),
        ),
        section("Bindings to this exchange", coming.element),
      ]
    : section(
        "Bindings",
        el(
          "p",
          {},
          "Every queue is bound to the default exchange by its own name; nothing else can be bound to it.",
        ),
      );
  const element = el(
    "div",
    { class: "page" },
    section("About", about.element),
    section("Messages", range.element, rates.element),
    delayed.element,
    bindings,
    folded("Publish a message", publishForm({ vhost, exchange: name, published: refresh }).element),
    ordinary
      ? el("div", { class: "page-actions" }, button("Delete exchange", remove, { class: "danger" }))
      : null,
  );
  return {
    title: `Exchange ${exchangeName(name)}`,
    vhost,
    call: where,
    thing: "exchange",
    element,
    refresh,
  };
}
