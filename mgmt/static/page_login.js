// The form that logs in. The node keeps the login in a cookie that scripts cannot read.

import { el, svg } from "./dom.js";
import { reason } from "./notices.js";
import { logIn } from "./session.js";

/** `enter` is called once the node knows us. */
export function loginPage(enter) {
  const name = el("input", {
    id: "username",
    name: "username",
    required: true,
    autocomplete: "username",
    spellcheck: "false",
  });
  const password = el("input", {
    id: "password",
    name: "password",
    type: "password",
    required: true,
    autocomplete: "current-password",
  });
  const problem = el("p", { class: "form-problem", role: "alert", hidden: true });
  const send = el("button", { type: "submit", class: "primary" }, "Log in");
  const form = el(
    "form",
    { class: "form login" },
    svg(
      "svg",
      { viewBox: "0 0 32 32", class: "mark", "aria-hidden": "true" },
      svg("path", { d: "M6 10h6l4 6-4 6H6M16 16h5" }),
      svg("circle", { cx: 24, cy: 16, r: 3.2 }),
    ),
    el("h1", {}, "Warren"),
    el("div", { class: "field" }, el("label", { for: "username" }, "User"), name),
    el("div", { class: "field" }, el("label", { for: "password" }, "Password"), password),
    problem,
    send,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    problem.hidden = true;
    try {
      await logIn(name.value, password.value);
      enter();
    } catch (failure) {
      problem.textContent =
        failure.error === "not_authorized" ? "User or password is wrong." : reason(failure);
      problem.hidden = false;
      password.select();
    } finally {
      send.disabled = false;
    }
  });
  return el("main", { class: "login-page" }, form);
}
