// Limits of all virtual hosts and users.

import * as api from "./api.js";
import { el, folded, section } from "./dom.js";
import { limitForm, limitsTable, USER_LIMITS, VHOST_LIMITS } from "./limits.js";
import { session } from "./session.js";

export function limitsPage() {
  const userForm = el("div");
  let ready = false;
  const refresh = async () => {
    const [ofVhosts, ofUsers] = await Promise.all([
      api.get("vhost-limits"),
      api.get("user-limits"),
    ]);
    vhosts.showAll(ofVhosts);
    users.showAll(ofUsers);
    if (ready) return;
    const names = (await api.get("users", { query: { columns: "name" } })).map((user) => user.name);
    userForm.append(
      limitForm({ kind: "user", names, limits: USER_LIMITS, changed: refresh }).element,
    );
    ready = true;
  };
  const vhosts = limitsTable({ id: "vhost-limits", kind: "vhost", changed: refresh });
  const users = limitsTable({ id: "user-limits", kind: "user", changed: refresh });
  const vhostForm = limitForm({
    kind: "vhost",
    names: session.vhosts,
    limits: VHOST_LIMITS,
    changed: refresh,
  });
  const element = el(
    "div",
    { class: "page" },
    section(
      "Virtual hosts",
      vhosts.element,
      folded("Set a limit of a virtual host", vhostForm.element),
    ),
    section("Users", users.element, folded("Set a limit of a user", userForm)),
  );
  return { title: "Limits", call: "vhost-limits", element, refresh };
}
