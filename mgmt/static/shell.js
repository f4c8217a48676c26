// The frame around every page: navigation, virtual host, refreshing, light or dark, log out.

import * as api from "./api.js";
import { button, el, setText, svg } from "./dom.js";
import { clock } from "./format.js";
import { failed } from "./notices.js";
import { clusterWarnings } from "./node_state.js";
import { prefer, preference } from "./prefs.js";
import { INTERVALS_S } from "./refresh.js";
import { chooseVhost, logOut, session } from "./session.js";

const ANYBODY = () => true;
const LINKS = [
  ["", "Overview", ANYBODY],
  ["connections", "Connections", ANYBODY],
  ["channels", "Channels", ANYBODY],
  ["exchanges", "Exchanges", ANYBODY],
  ["queues", "Queues", ANYBODY],
];
/** What a health check answers that has found something. */
const UNHEALTHY = 503;
/** What is asked of nodes at each refresh, to say what is wrong with them. */
const WATCHED =
  "name,state,running,partitions,mem_alarm,disk_free_alarm,unclaimed_messages,unreadable_definitions";
const ADMIN_LINKS = [
  ["users", "Users", () => session.isAdministrator],
  ["vhosts", "Virtual hosts", () => session.isAdministrator],
  ["policies", "Policies", () => session.isPolicymaker],
  ["shovels", "Shovels", () => session.isMonitor],
  ["federation", "Federation", () => session.isMonitor || session.isPolicymaker],
  ["trace", "Lives of messages", () => session.isMonitor],
  ["limits", "Limits", () => session.isAdministrator],
  ["definitions", "Definitions", () => session.isAdministrator],
  ["nodes", "Nodes", () => session.isMonitor],
];

/** "auto", "light" or "dark". */
export function applyTheme(theme = preference("theme", "auto")) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

export class Shell {
  #main = el("main", { id: "main", tabindex: "-1" });
  #alarms = el("div", { class: "alarms", role: "status", "aria-label": "Alarms" });
  #links = new Map();
  #ticked = el("span", { class: "ticked" });
  #vhosts;
  #reshow;
  #menu;

  /** `leave` shows the log-in again, `reshow` makes the page on show anew. */
  constructor({ refresher, leave, reshow }) {
    this.#reshow = reshow;
    this.#vhosts = el("select", { "aria-label": "Virtual host" });
    this.#vhosts.addEventListener("change", () => {
      chooseVhost(this.#vhosts.value);
      this.#reshow();
    });
    this.#menu = button("Menu", () => this.#toggle(), {
      class: "menu-button",
      "aria-expanded": "false",
      "aria-controls": "side",
    });
    const skip = button("Skip to content", () => this.#main.focus(), { class: "skip" });
    const header = el(
      "header",
      { class: "top" },
      skip,
      this.#menu,
      el("a", { href: "#/", class: "brand" }, mark(), "Warren"),
      el(
        "div",
        { class: "top-tools" },
        el("label", { class: "tool" }, el("span", {}, "Virtual host"), this.#vhosts),
        refreshTool(refresher),
        this.#ticked,
        themeTool(),
        whoTool(leave),
      ),
    );
    const side = el(
      "nav",
      { id: "side", class: "side", "aria-label": "Pages" },
      this.#list(LINKS),
      this.#adminList(),
    );
    this.element = el("div", { class: "shell" }, header, side, this.#main);
    this.#fillVhosts();
  }

  show(page, area, problem) {
    this.#fillVhosts();
    for (const [name, link] of this.#links) {
      if (name === area) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const inVhost = page.vhost === undefined ? null : ` in virtual host ${page.vhost}`;
    this.#main.replaceChildren(
      el("h1", {}, page.title, inVhost && el("span", { class: "in-vhost" }, inVhost)),
      this.#alarms,
      problem,
      page.element,
      ...callLink(page.call),
    );
    this.#toggle(false);
    window.scrollTo(0, 0);
    // What had the focus may be gone with the page before.
    if (document.activeElement === document.body) this.#main.focus({ preventScroll: true });
  }

  /** Shows what is wrong with nodes, whatever page is on show. */
  async watch() {
    const texts = session.isMonitor
      ? clusterWarnings(await api.get("nodes", { query: { columns: WATCHED } }), session.node)
      : await alarmsInEffect();
    if (this.#alarms.textContent !== texts.join("")) {
      this.#alarms.replaceChildren(...texts.map((text) => el("p", { class: "alarm" }, text)));
    }
  }

  /** The page has been refreshed. */
  ticked() {
    setText(this.#ticked, `Updated ${clock(Date.now())}`);
  }

  #toggle(open = !this.element.classList.contains("menu-open")) {
    this.element.classList.toggle("menu-open", open);
    this.#menu.setAttribute("aria-expanded", String(open));
  }

  #fillVhosts() {
    const options = [
      el("option", { value: "" }, "All"),
      ...session.vhosts.map((name) => el("option", { value: name }, name)),
    ];
    this.#vhosts.replaceChildren(...options);
    this.#vhosts.value = session.vhost;
  }

  #list(links) {
    const items = links
      .filter(([, , may]) => may())
      .map(([name, label]) => {
        const link = el("a", { href: `#/${name}` }, label);
        this.#links.set(name, link);
        return el("li", {}, link);
      });
    return el("ul", {}, items);
  }

  #adminList() {
    const list = this.#list(ADMIN_LINKS);
    return list.childElementCount ? [el("h2", {}, "Administration"), list] : null;
  }
}

/** That there are alarms, for those who may not look at nodes: their publishers wait, too. */
async function alarmsInEffect() {
  try {
    await api.get("health/checks/alarms");
    return [];
  } catch (problem) {
    if (problem.status !== UNHEALTHY) throw problem;
    return [`${problem.message}: publishers may be blocked.`];
  }
}

/** What the page shows, as the API tells it. */
function callLink(call) {
  if (!call) return [];
  const { href, pathname } = api.address(call);
  const link = el("a", { href, target: "_blank", rel: "noopener" }, `GET ${pathname}`);
  return [el("p", { class: "call" }, "The same from the API: ", link)];
}

function mark() {
  return svg(
    "svg",
    { viewBox: "0 0 32 32", class: "mark", "aria-hidden": "true" },
    svg("path", { d: "M6 10h6l4 6-4 6H6M16 16h5" }),
    svg("circle", { cx: 24, cy: 16, r: 3.2 }),
  );
}

function refreshTool(refresher) {
  const label = (seconds) => (seconds ? `every ${seconds} s` : "only by hand");
  const choice = el(
    "select",
    {},
    INTERVALS_S.map((seconds) => el("option", { value: seconds }, label(seconds))),
  );
  choice.value = refresher.intervalS;
  choice.addEventListener("change", () => (refresher.intervalS = Number(choice.value)));
  const now = button("Refresh", () => refresher.now(), { class: "small" });
  return el(
    "span",
    { class: "tool" },
    el("label", { class: "tool" }, el("span", {}, "Refresh"), choice),
    now,
  );
}

function themeTool() {
  const choice = el(
    "select",
    {},
    ["auto", "light", "dark"].map((theme) => el("option", { value: theme }, theme)),
  );
  choice.value = preference("theme", "auto");
  choice.addEventListener("change", () => {
    prefer("theme", choice.value);
    applyTheme(choice.value);
  });
  return el("label", { class: "tool" }, el("span", {}, "Colours"), choice);
}

function whoTool(leave) {
  const out = async () => {
    try {
      await logOut();
      leave();
    } catch (problem) {
      failed(problem);
    }
  };
  return el(
    "span",
    { class: "tool who" },
    el("span", { title: session.tags.join(", ") }, session.name),
    button("Log out", out, { class: "small" }),
  );
}
