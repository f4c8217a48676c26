// Starts: log-in or pages, the frame around them, and which page an address means.

import { LOGGED_OUT, PAUSED } from "./api.js";
import { el, setText } from "./dom.js";
import { channelPage, channelsPage } from "./page_channels.js";
import { connectionPage, connectionsPage } from "./page_connections.js";
import { definitionsPage } from "./page_definitions.js";
import { exchangePage } from "./page_exchange.js";
import { exchangesPage } from "./page_exchanges.js";
import { federationPage } from "./page_federation.js";
import { limitsPage } from "./page_limits.js";
import { loginPage } from "./page_login.js";
import { messagesPage } from "./page_messages.js";
import { nodePage, nodesPage } from "./page_nodes.js";
import { overviewPage } from "./page_overview.js";
import { policiesPage } from "./page_policies.js";
import { queuePage } from "./page_queue.js";
import { queuesPage } from "./page_queues.js";
import { shovelsPage } from "./page_shovels.js";
import { lifePage, tracePage } from "./page_trace.js";
import { userPage, usersPage } from "./page_users.js";
import { vhostPage, vhostsPage } from "./page_vhosts.js";
import { clearNotices, failed, leavePage, reason } from "./notices.js";
import { match, parseHash } from "./router.js";
import { Refresher } from "./refresh.js";
import { applyTheme, Shell } from "./shell.js";
import { forget, learnWho, mayBeLoggedIn } from "./session.js";

const ROUTES = [
  ["", overviewPage],
  ["connections", connectionsPage],
  ["connections/:name", connectionPage],
  ["channels", channelsPage],
  ["channels/:name", channelPage],
  ["exchanges", exchangesPage],
  ["exchanges/:vhost/:name", exchangePage],
  ["queues", queuesPage],
  ["queues/:vhost/:name", queuePage],
  ["queues/:vhost/:name/messages", messagesPage],
  ["users", usersPage],
  ["users/:name", userPage],
  ["vhosts", vhostsPage],
  ["vhosts/:name", vhostPage],
  ["policies", policiesPage],
  ["shovels", shovelsPage],
  ["federation", federationPage],
  ["trace", tracePage],
  ["trace/:vhost/:message", lifePage],
  ["limits", limitsPage],
  ["definitions", definitionsPage],
  ["nodes", nodesPage],
  ["nodes/:name", nodePage],
];

const app = document.getElementById("app");
const refresher = new Refresher();
let shell = null;

function showLogin() {
  refresher.stop();
  shell = null;
  document.title = "Log in · Warren";
  app.replaceChildren(loginPage(enter));
  app.querySelector("input").focus();
}

function enter() {
  clearNotices();
  shell = new Shell({ refresher, leave: showLogin, reshow: show });
  app.replaceChildren(shell.element);
  show();
}

/** Puts the page of the address on show. It is made once; from then on it only refreshes. */
function show() {
  if (!shell) return;
  const { parts, query } = parseHash(window.location.hash);
  const found = match(ROUTES, parts) ?? { page: nowherePage, parameters: {} };
  const page = found.page(found.parameters, query);
  const problem = el("p", { class: "page-problem", role: "alert", hidden: true });
  shell.show(page, parts[0] ?? "", problem);
  document.title = `${titleOf(page)} · Warren`;
  let seen = false;
  refresher.work = async () => {
    try {
      await page.refresh?.();
      seen = true;
      problem.hidden = true;
      page.element.classList.remove("gone");
      page.element.inert = false;
    } catch (failure) {
      setText(problem, explained(failure, page, seen));
      problem.hidden = false;
      // The last contents stay readable; whatever one did with a thing that is gone would fail.
      page.element.classList.toggle("gone", failure.status === 404);
      page.element.inert = failure.status === 404;
    }
    // The next refresh tries again; a page that cannot be shown has said why.
    await shell?.watch().catch(() => {});
    shell?.ticked();
  };
  refresher.now();
}

function titleOf({ title, vhost }) {
  return vhost === undefined ? title : `${title} in ${vhost}`;
}

function explained(problem, page, seen) {
  if (problem.status === 404 && page.thing) {
    return seen
      ? `This ${page.thing} is gone: it has been deleted or closed. Below is what was known of it last.`
      : `There is no such ${page.thing}: it has been deleted or closed, or there never was one.`;
  }
  if (problem.status === 404) return "It is not there (any more).";
  if (problem.status === 401) return `You may not look at this: ${reason(problem)}.`;
  return `${reason(problem)} This page shows what was known last.`;
}

function nowherePage() {
  return {
    title: "No such page",
    element: el(
      "p",
      {},
      "There is no page at this address. ",
      el("a", { href: "#/" }, "Back to the overview"),
    ),
  };
}

window.addEventListener("hashchange", () => {
  leavePage();
  show();
});
window.addEventListener(LOGGED_OUT, () => {
  forget();
  if (shell) {
    showLogin();
    failed(new Error("You have been logged out."));
  }
});

window.addEventListener(PAUSED, ({ detail }) => {
  setText(document.getElementById("paused"), detail && `${detail}.`);
});

async function start() {
  applyTheme();
  if (!mayBeLoggedIn()) return showLogin();
  try {
    await learnWho();
    enter();
  } catch (problem) {
    showLogin();
    if (problem.status !== 401) failed(problem);
  }
}

start();
