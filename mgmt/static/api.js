// Requests to the node. Knows the forms of its answers and failures, nothing of pages.

const BASE = new URL("api/", document.baseURI);

/** Told on `window` when the node does not know us (any more). */
export const LOGGED_OUT = "warren:logged-out";

/** Told on `window` with each answer: `detail` says why the node has paused, "" if it has not. */
export const PAUSED = "warren:paused";

export class Unreachable extends Error {
  constructor() {
    super("The node cannot be reached.");
  }
}

export class ApiFailure extends Error {
  constructor(status, error, reason) {
    super(reason || error || `The node answered ${status}.`);
    this.status = status;
    this.error = error;
  }
}

let skew = 0;

/** The node's time in milliseconds, as far as its answers tell: samples carry the node's times. */
export function nodeNow() {
  return Date.now() + skew;
}

/** A path of names, each of which may hold anything. */
export function path(...names) {
  return names.map(encodeURIComponent).join("/");
}

/** Where an exchange is in paths: the default one has no name of its own. */
export function exchangePath(vhost, name) {
  return path("exchanges", vhost, name || "amq.default");
}

export function address(where, query = {}) {
  const url = new URL(where, BASE);
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

/**
 * `body` is sent as JSON, `form` as a form; `vhost` limits lists to a virtual host. Answers what
 * the JSON says, or null. Throws ApiFailure or Unreachable.
 */
export async function request(method, where, { body, form, query, vhost } = {}) {
  // The header says that a page asks, so that the browser is not told to ask for a password.
  const headers = { Accept: "application/json", "X-Requested-With": "fetch" };
  const options = { method, headers, cache: "no-store", credentials: "same-origin" };
  if (vhost) headers["X-Vhost"] = headerText(vhost);
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  } else if (form !== undefined) {
    options.body = new URLSearchParams(form);
  }
  const response = await fetch(address(where, query), options).catch(() => {
    throw new Unreachable();
  });
  const told = Date.parse(response.headers.get("Date"));
  // The header is in whole seconds: less than that is no difference.
  skew = Math.abs(told - Date.now()) > 2000 ? told - Date.now() : 0;
  const paused = response.headers.get("Warren-Paused") ?? "";
  window.dispatchEvent(new CustomEvent(PAUSED, { detail: paused }));
  const text = await response.text();
  const answer = text ? parsed(text) : null;
  if (response.ok) return answer;
  const { error = "", reason = "" } = answer ?? {};
  // 401 is also what one is told who may not do something, then with a reason.
  if (response.status === 401 && (!answer || error === "not_authorized")) {
    window.dispatchEvent(new Event(LOGGED_OUT));
  }
  const explained = typeof reason === "string" ? reason : JSON.stringify(reason);
  throw new ApiFailure(response.status, error, explained);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return { error: "no_json", reason: text.slice(0, 500) };
  }
}

/** Headers hold octets only: those of UTF-8. */
function headerText(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

export const get = (where, options) => request("GET", where, options);
export const put = (where, body = {}) => request("PUT", where, { body });
export const post = (where, body = {}) => request("POST", where, { body });
export const remove = (where, query) => request("DELETE", where, { query });
