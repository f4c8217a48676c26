// Messages to the user at the edge of the page: what was done, what failed.

import { ApiFailure, Unreachable } from "./api.js";
import { button, el } from "./dom.js";

const SUCCESS_MS = 6000;

export function said(text) {
  const notice = put("good", text);
  setTimeout(() => notice.remove(), SUCCESS_MS);
}

export function failed(problem) {
  const text = reason(problem);
  for (const other of host().children) {
    // The same failure again and again is one failure.
    if (other.firstChild.textContent === text) return;
  }
  put("bad", text);
}

/** The page is left: what was said of it goes, but for what `takeAlong` has marked. */
export function leavePage() {
  for (const notice of [...host().children]) {
    if (notice.alongOnce) notice.alongOnce = false;
    else notice.remove();
  }
}

/** What is said now is for the page that comes next. */
export function takeAlong() {
  for (const notice of host().children) notice.alongOnce = true;
}

export function clearNotices() {
  host().replaceChildren();
}

/** What a failure says; one of our own making is put where developers look, too. */
export function reason(problem) {
  if (
    problem.constructor !== Error &&
    !(problem instanceof ApiFailure || problem instanceof Unreachable)
  ) {
    console.error(problem);
  }
  return problem.message;
}

function host() {
  return document.getElementById("notices");
}

function put(tone, text) {
  const notice = el("div", { class: `notice ${tone}` }, el("span", {}, text));
  notice.append(button("Dismiss", () => notice.remove(), { class: "quiet" }));
  host().append(notice);
  return notice;
}
