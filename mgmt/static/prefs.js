// What a browser remembers of its user's choices. Nothing secret: the login is the cookie's.

const PREFIX = "warren.";

export function preference(name, otherwise) {
  try {
    const stored = localStorage.getItem(PREFIX + name);
    return stored === null ? otherwise : JSON.parse(stored);
  } catch {
    // Storage may be forbidden, or hold what an older version wrote.
    return otherwise;
  }
}

export function prefer(name, value) {
  try {
    if (value === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // Then the choice lasts as long as the page.
  }
}
