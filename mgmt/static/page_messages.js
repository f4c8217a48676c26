// The messages of a queue: looked for by filter, page by page; moved, copied or deleted by jobs.

import * as api from "./api.js";
import { to } from "./cells.js";
import { ask } from "./deleting.js";
import { button, el, freshId, section, setText } from "./dom.js";
import { plural } from "./format.js";
import { Form } from "./forms.js";
import { messageBox } from "./message_box.js";
import { failed } from "./notices.js";

const SHOWN_BYTES = 50_000;
const ACTIONS = [
  { value: "move", label: "Move" },
  { value: "copy", label: "Copy" },
  { value: "replay", label: "Replay from this stream, or what is retained" },
  { value: "delete", label: "Delete" },
  { value: "requeue", label: "Put at the end of this queue" },
  { value: "redrive-exchange", label: "Send back to the exchange they came from" },
  { value: "redrive-queue", label: "Send back to the queue in which they died" },
];
const OVER = ["completed", "stopped", "failed"];

export function messagesPage({ vhost, name }) {
  const where = api.path("queues", vhost, name, "messages");
  const found = new Found(where);
  const jobs = new Jobs(vhost, name);
  const redrive = button("Send dead letters back", () => sendBack(vhost, name, found, jobs));
  const element = el(
    "div",
    { class: "page" },
    el("p", {}, el("a", { href: to.queue(vhost, name) }, `Back to queue ${name}`)),
    section(
      "Look",
      el(
        "p",
        { class: "hint" },
        "Messages stay as they are. A filter reads such as ",
        el("code", {}, 'routing_key like "orders.*" and headers.tenant = "acme" and age > 1h'),
        ".",
      ),
      found.form.element,
      found.element,
    ),
    section("Move, copy or delete", actionForm(where, found, jobs).element, redrive),
    section("Jobs on this queue", jobs.element),
  );
  return {
    title: `Messages of ${name}`,
    vhost,
    call: where,
    thing: "queue",
    element,
    refresh: async () => {
      await found.begin();
      await jobs.refresh();
    },
  };
}

/** What was found last, and which of it is selected. */
class Found {
  selected = new Set();
  #where;
  #asked = { filter: "", order: "oldest", retained: "false", limit: 20 };
  #first = null;
  // The positions that the pages before this one began at.
  #before = [];
  #shown = null;
  #next = null;
  #begun = false;
  #summary = el("p", { class: "got-summary", role: "status" });
  #list = el("div", { class: "got" });
  #back = button("Previous page", () => this.#show(this.#before.pop()).catch(failed), {
    hidden: true,
  });
  #more = button("Next page", () => this.#goOn().catch(failed), { hidden: true });
  #export = el("a", { download: "messages.jsonl" }, "Export all that the filter finds");

  constructor(where) {
    this.#where = where;
    this.form = new Form({
      label: "Look",
      keep: true,
      fields: [
        { name: "filter", label: "Filter", hint: "Empty: every message." },
        {
          name: "order",
          label: "Order",
          type: "select",
          options: [
            { value: "oldest", label: "the oldest first" },
            { value: "newest", label: "the newest first" },
          ],
        },
        {
          name: "retained",
          label: "Of",
          type: "select",
          options: [
            { value: "false", label: "what is in the queue" },
            { value: "true", label: "what was acknowledged and is retained" },
          ],
        },
        { name: "from", label: "From position", hint: "Empty: from the first one." },
        { name: "limit", label: "On a page", type: "number", value: "20", min: 1, required: true },
      ],
      submit: async ({ from, ...asked }) => {
        this.#asked = asked;
        this.#first = from || null;
        this.#before = [];
        await this.#show(this.#first);
      },
    });
    this.element = el(
      "div",
      {},
      this.#summary,
      this.#list,
      el("p", {}, this.#back, " ", this.#more, " ", this.#export),
    );
  }

  get filter() {
    return this.#asked.filter;
  }

  /** The first page, when the page is opened: what somebody reads is not exchanged later. */
  async begin() {
    if (this.#begun) {
      await api.get(this.#where, { query: { limit: 1, truncate: 0 } });
      return;
    }
    await this.#show(this.#first);
    this.#begun = true;
  }

  async #goOn() {
    const left = this.#shown;
    await this.#show(this.#next);
    this.#before.push(left);
    this.#back.hidden = false;
  }

  async #show(from) {
    const { filter, order, retained } = this.#asked;
    const query = { ...this.#asked, truncate: SHOWN_BYTES, from };
    const page = await api.get(this.#where, { query });
    this.selected.clear();
    this.#shown = from;
    this.#back.hidden = this.#before.length === 0;
    this.#next = page.next;
    this.#more.hidden = page.next === null;
    setText(this.#more, page.messages.length ? "Next page" : "Go on searching");
    const end = page.next === null ? "That is the end of the queue." : "There is more.";
    const leftOut = page.unacked_left_out
      ? ` ${plural(page.unacked_left_out, "unacknowledged message")} not shown.`
      : "";
    setText(
      this.#summary,
      `${plural(page.messages.length, "message")} found among ${page.looked_at}. ${end}${leftOut}`,
    );
    this.#export.href = api.address(`${this.#where}/export`, { filter, order, retained });
    this.#list.replaceChildren(...page.messages.map((message) => this.#box(message)));
  }

  #box(message) {
    const id = freshId("chosen");
    const choose = el("input", { type: "checkbox", id });
    choose.addEventListener("change", () => {
      if (choose.checked) this.selected.add(message.position);
      else this.selected.delete(message.position);
    });
    const tools =
      message.state === "unacked"
        ? null
        : el("p", {}, choose, el("label", { for: id }, ` Select message ${message.position}`));
    return messageBox(message, {
      label: `Message ${message.position}`,
      shownBytes: SHOWN_BYTES,
      tools,
    });
  }
}

/** Begins a job on what is selected, or on all that the filter finds. */
function actionForm(where, found, jobs) {
  return new Form({
    label: "Begin",
    keep: true,
    fields: [
      { name: "action", label: "Action", type: "select", options: ACTIONS },
      {
        name: "which",
        label: "Which messages",
        type: "select",
        options: [
          { value: "filter", label: "all that the filter above finds and no client has" },
          { value: "selected", label: "those that are selected above" },
        ],
      },
      { name: "queue", label: "To queue", hint: "To move, copy or replay; or else" },
      { name: "exchange", label: "To exchange" },
      { name: "key", label: "Routing key", hint: "Empty: that of each message." },
      {
        name: "death",
        label: "Sent back to where they came from before their",
        type: "select",
        options: [
          { value: "last", label: "last death" },
          { value: "first", label: "first death" },
        ],
      },
      { name: "first", label: "Replay from offset", type: "number", min: 0, hint: "Or by time:" },
      { name: "last", label: "Replay up to offset", type: "number", min: 0 },
      { name: "since", label: "Replay since", hint: "As 2026-01-31T08:00:00Z; empty: all." },
      { name: "until", label: "Replay until" },
      { name: "limit", label: "At most", type: "number", min: 1 },
      { name: "rate", label: "A second at most", type: "number", min: 0 },
      { name: "dry", label: "Only count them", type: "checkbox", value: true },
    ],
    submit: async (values) => {
      const plan = planOf(values, found);
      const begin = () => api.post(`${where}/jobs`, plan);
      if (plan.action === "delete" && !plan.dry_run) {
        const text = "They are gone for good.";
        const done = "The messages are being deleted.";
        await ask({ title: "Delete these messages?", text, label: "Delete", done, act: begin });
      } else await begin();
      await jobs.refresh();
    },
  });
}

/** Sends the dead letters that the filter finds back to the exchange they came from. */
async function sendBack(vhost, name, found, jobs) {
  const which = found.filter ? "All that the filter finds" : "All messages";
  const done = await ask({
    title: "Send dead letters back?",
    text: `${which} go to the exchange, with the routing keys, that they had before they died. What cannot go back stays.`,
    label: "Send back",
    done: "The dead letters are being sent back.",
    act: () =>
      api.post(`${api.path("queues", vhost, name)}/redrive`, { filter: found.filter }),
  });
  if (done) await jobs.refresh();
}

function planOf(values, found) {
  const { action, which, queue, exchange, key, since, until, limit, rate, dry } = values;
  const { death, first, last } = values;
  const [name, back] = action.split("-");
  const plan = { action: name, dry_run: dry };
  if (which === "selected") plan.positions = [...found.selected];
  else if (found.filter) plan.filter = found.filter;
  if (back) Object.assign(plan, { back_to: back, death });
  if (queue) plan.to_queue = queue;
  if (exchange) plan.to_exchange = exchange;
  if (key) plan.routing_key = key;
  if (first) plan.first = Number(first);
  if (last) plan.last = Number(last);
  if (since) plan.since = since;
  if (until) plan.until = until;
  if (limit) plan.limit = Number(limit);
  if (rate) plan.rate = Number(rate);
  return plan;
}

/** The jobs on one queue, the youngest first. */
class Jobs {
  element = el("div", { class: "got" });
  #vhost;
  #queue;
  #known = "";

  constructor(vhost, queue) {
    this.#vhost = vhost;
    this.#queue = queue;
  }

  async refresh() {
    const all = await api.get(api.path("message-jobs", this.#vhost));
    const own = all.filter((job) => job.queue === this.#queue).reverse();
    const told = JSON.stringify(own);
    if (told === this.#known) return;
    this.#known = told;
    this.element.replaceChildren(
      ...(own.length
        ? own.map((job) => this.#box(job))
        : [el("p", { class: "empty" }, "There are none.")]),
    );
  }

  #box(job) {
    const where = api.path("message-jobs", this.#vhost, job.name);
    const act = (work) => () => work().then(() => this.refresh(), failed);
    const end = OVER.includes(job.state) || job.state === "interrupted" ? "Forget" : "Stop";
    return el(
      "article",
      { class: "message", "aria-label": `Job ${job.name}` },
      el("p", {}, told(job)),
      (job.left ?? []).map(({ reason, messages }) =>
        el("p", {}, `${plural(messages, "message")} stay: ${reason}`),
      ),
      (job.samples ?? []).map((message) =>
        el("pre", { tabindex: "0", "aria-label": `Sample ${message.position}` }, message.payload),
      ),
      el(
        "p",
        {},
        button(
          end,
          act(() => api.remove(where)),
          { class: "small" },
        ),
        job.state === "interrupted"
          ? button(
              "Start again",
              act(() => api.post(`${where}/restart`)),
              { class: "small" },
            )
          : null,
      ),
    );
  }
}

function told(job) {
  const done = job.done === undefined ? "" : `: ${plural(job.done, "message")}`;
  const doing = job.dry_run ? `would ${job.action}` : job.action;
  const reason = job.reason ? ` (${job.reason})` : "";
  return `${doing}${done}, ${job.state}${reason}`;
}
