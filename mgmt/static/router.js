// From the address behind # to a page. A route is a list of names, `:x` stands for any.

import { takeAlong } from "./notices.js";

/** The parts of an address and its query: `#/queues/%2F/q?a=b`. */
export function parseHash(hash) {
  const [where, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return {
    parts: where.split("/").filter(Boolean).map(decoded),
    query: new URLSearchParams(query),
  };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    // Somebody typed it.
    return part;
  }
}

/** The page of the first route that fits, and what its `:x` stand for; null if none does. */
export function match(routes, parts) {
  for (const [route, page] of routes) {
    const wanted = route.split("/").filter(Boolean);
    if (wanted.length !== parts.length) continue;
    const parameters = {};
    const fits = wanted.every((name, at) => {
      if (!name.startsWith(":")) return name === parts[at];
      parameters[name.slice(1)] = parts[at];
      return true;
    });
    if (fits) return { page, parameters };
  }
  return null;
}

/** To another page, with what was said of this one: a thing that was deleted has no page. */
export function go(hash) {
  takeAlong();
  window.location.hash = hash;
}
