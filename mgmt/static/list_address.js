// Where a list is, in the address of its page: filter, order and page. So it is there again after a
// reload and after Back, and can be sent to somebody.

import { parseHash } from "./router.js";

/** What the address says of a list with these columns. */
export function readAddress(columns) {
  const { query } = parseHash(window.location.hash);
  const page = Number(query.get("page"));
  return {
    page: Number.isInteger(page) && page > 0 ? page : 1,
    name: query.get("name") ?? "",
    regex: query.get("regex") === "true",
    sort: columns.find((column) => column.id === query.get("sort")) ?? null,
    reverse: query.get("reverse") === "true",
  };
}

/** Puts it there, in place of the address before: Back leads to the page before, not to each letter. */
export function writeAddress({ page, name, regex, sort, reverse }) {
  const [where] = window.location.hash.split("?");
  const { query } = parseHash(window.location.hash);
  const said = {
    page: page > 1 ? page : null,
    name: name || null,
    regex: name && regex ? "true" : null,
    sort: sort?.id ?? null,
    reverse: sort && reverse ? "true" : null,
  };
  for (const [key, value] of Object.entries(said)) {
    if (value === null) query.delete(key);
    else query.set(key, value);
  }
  const text = query.toString();
  const hash = text ? `${where || "#/"}?${text}` : where;
  if (hash !== window.location.hash) window.history.replaceState(null, "", hash || "#/");
}
