// Who is logged in, and what that opens.

import * as api from "./api.js";
import { prefer, preference } from "./prefs.js";

export const session = {
  name: "",
  tags: [],
  vhosts: [],
  /** The one that answers. */
  node: "",
  /** The members of the cluster; of a node that is alone, itself. */
  members: [],
  /** The virtual host that lists are limited to; "" is all. */
  vhost: preference("vhost", ""),

  get isAdministrator() {
    return this.tags.includes("administrator");
  },
  get isMonitor() {
    return this.isAdministrator || this.tags.includes("monitoring");
  },
  get isPolicymaker() {
    return this.isAdministrator || this.tags.includes("policymaker");
  },
  get isInCluster() {
    return this.members.length > 1;
  },
  /** What forms begin with. */
  get usualVhost() {
    return this.vhost || (this.vhosts.includes("/") ? "/" : (this.vhosts[0] ?? "/"));
  },
};

/** Whether there was a login in this browser: asking without one would only be refused. */
export function mayBeLoggedIn() {
  return preference("loggedIn", false);
}

export function chooseVhost(vhost) {
  session.vhost = vhost;
  prefer("vhost", vhost);
}

export async function learnWho() {
  const who = await api.get("whoami");
  session.name = who.name;
  session.tags = who.tags;
  session.members = (await api.get("members")).members;
  session.node = (await api.get("overview", { query: { columns: "node" } })).node;
  await learnVhosts();
}

export async function learnVhosts() {
  const rows = await api.get("vhosts", { query: { columns: "name" } });
  session.vhosts = rows.map((row) => row.name);
  if (!session.vhosts.includes(session.vhost)) chooseVhost("");
}

export async function logIn(username, password) {
  await api.request("POST", "login", { form: { username, password } });
  prefer("loggedIn", true);
  await learnWho();
}

export function forget() {
  prefer("loggedIn", null);
  session.name = "";
  session.tags = [];
  session.vhosts = [];
  session.members = [];
}

export async function logOut() {
  await api.remove("login");
  forget();
}
