// What a mirrored queue's page shows of its copies: the ring, how far each mirror is, and what may
// be done about it.

import * as api from "./api.js";
import { facts, nodeLink, showCell } from "./cells.js";
import { copiesOf, verdict } from "./copies.js";
import { button, el, section, setText } from "./dom.js";
import { bytes, count, duration, moment, plural } from "./format.js";
import { failed, said } from "./notices.js";
import { Ring, STANDINGS } from "./ring.js";
import { session } from "./session.js";

export class MirrorsPart {
  #where;
  #changed;
  #verdict = el("p");
  #about = facts(["Leader", "Last change of the leader"]);
  #ring = new Ring();
  #list = el("ul", { class: "copies" });
  #rows = new Map();
  #synchronise;
  #cancel;
  element;

  /** `where` is the queue's address, `changed` is called after something was done. */
  constructor(where, changed) {
    this.#where = where;
    this.#changed = changed;
    this.#synchronise = button("Synchronise mirrors", () =>
      this.#act("sync", "The mirrors are being synchronised."),
    );
    this.#cancel = button("Cancel synchronisation", () =>
      this.#act("cancel_sync", "The synchronisation is cancelled."),
    );
    this.element = section(
      "Mirrors",
      this.#verdict,
      el("div", { class: "copies-part" }, this.#ring.element, this.#list),
      this.#about.element,
      el("div", { class: "page-actions" }, this.#synchronise, this.#cancel),
    );
    this.element.hidden = true;
  }

  /** A queue without mirrors has no such part. */
  update(queue) {
    this.element.hidden = !queue.slave_nodes;
    if (!queue.slave_nodes) return;
    const { tone, text } = verdict(queue, session.members.length);
    this.#verdict.className = `finding ${tone}`;
    setText(this.#verdict, text);
    const copies = copiesOf(queue);
    this.#ring.update(copies);
    this.#showRows(queue, copies);
    const when = queue.promoted_at ? `, ${moment(Date.parse(queue.promoted_at))}` : "";
    this.#about.set({
      Leader: nodeLink(queue.node),
      "Last change of the leader": queue.promoted ? `${queue.promoted}${when}` : "none",
    });
    const syncing = Object.keys(queue.sync_progress ?? {});
    const lacking = queue.slave_nodes.filter(
      (node) => !queue.synchronised_slave_nodes.includes(node) && !syncing.includes(node),
    );
    // Only its leader can do it.
    const may = session.isPolicymaker && queue.state !== "down";
    this.#synchronise.hidden = !may || !lacking.length;
    this.#cancel.hidden = !may || !syncing.length;
  }

  #showRows(queue, copies) {
    const wanted = new Set(copies.map(({ node }) => node));
    for (const [node, row] of this.#rows) {
      if (!wanted.has(node)) {
        row.element.remove();
        this.#rows.delete(node);
      }
    }
    for (const copy of copies) {
      let row = this.#rows.get(copy.node);
      if (!row) {
        row = new CopyRow(copy.node);
        this.#rows.set(copy.node, row);
      }
      row.update(copy.state, queue);
      this.#list.append(row.element);
    }
  }

  async #act(action, done) {
    try {
      await api.post(`${this.#where}/actions`, { action });
    } catch (problem) {
      failed(problem);
      return;
    }
    said(done);
    await this.#changed();
  }
}

class CopyRow {
  #node;
  #name = el("b");
  #badge = el("span");
  #lag = el("span", { class: "hint" });
  #fill = el("div", { class: "meter-fill" });
  #bar = el("div", { class: "meter-bar", role: "progressbar", "aria-valuemin": 0 }, this.#fill);
  #told = el("span", { class: "hint" });
  #progress = el("div", { class: "copy-progress" }, this.#bar, this.#told);
  element = el(
    "li",
    {},
    el("div", { class: "copy-head" }, this.#name, this.#badge, this.#lag),
    this.#progress,
  );

  constructor(node) {
    this.#node = node;
    showCell(this.#name, nodeLink(node));
    this.#bar.setAttribute("aria-label", `Synchronisation of ${node}`);
  }

  update(state, queue) {
    const { label, tone, told } = STANDINGS[state] ?? { label: state, tone: "plain" };
    showCell(this.#badge, { text: label, tone, title: told });
    setText(this.#lag, lagText(this.#node, queue));
    const progress = queue.sync_progress?.[this.#node];
    this.#progress.hidden = !progress;
    if (!progress) return;
    const { sent, total, seconds_left: left } = progress;
    const share = total ? Math.min(1, sent / total) : 1;
    const estimate = left === null ? "" : `, about ${duration(left * 1000)} left`;
    const text = `${count(sent)} of ${plural(total, "message")}${estimate}`;
    this.#fill.style.width = `${share * 100}%`;
    this.#bar.setAttribute("aria-valuemax", total);
    this.#bar.setAttribute("aria-valuenow", Math.min(sent, total));
    this.#bar.setAttribute("aria-valuetext", text);
    setText(this.#told, text);
  }
}

/** How far a mirror is behind; nothing of those of which the leader says nothing. */
function lagText(node, queue) {
  const batches = queue.mirror_lag?.[node];
  if (batches === undefined) return "";
  if (!batches) return "up to date with what is published";
  const octets = bytes(queue.mirror_lag_bytes?.[node] ?? 0);
  return `${plural(batches, "batch", "batches")} behind (${octets})`;
}
