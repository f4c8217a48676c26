// Numbers, sizes and times as people read them.

const UNITS = ["", "k", "M", "G", "T"];

/** Three digits and a letter: 1234 is 1.23k. */
export function short(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size < 1000)
    return trimmed(value, size < 10 && !Number.isInteger(value) ? 2 : size < 100 ? 1 : 0);
  const power = Math.min(Math.floor(Math.log10(size) / 3), UNITS.length - 1);
  const scaled = value / 1000 ** power;
  return trimmed(scaled, scaled < 10 ? 2 : scaled < 100 ? 1 : 0) + UNITS[power];
}

function trimmed(value, digits) {
  return String(Number(value.toFixed(digits)));
}

export function count(value) {
  return Number.isFinite(value) ? Math.round(value).toLocaleString("en") : "–";
}

export function rate(value) {
  return Number.isFinite(value) ? `${short(value)}/s` : "–";
}

export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  const power = value < 1024 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), 5);
  const scaled = value / 1024 ** power;
  const digits = power === 0 || scaled >= 100 ? 0 : 1;
  return `${trimmed(scaled, digits)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}`;
}

export function duration(milliseconds) {
  const seconds = Math.round(milliseconds / 1000);
  const parts = [
    [Math.floor(seconds / 86400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [seconds % 60, "s"],
  ];
  const first = parts.findIndex(([amount]) => amount > 0);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .filter(([amount]) => amount > 0)
    .map(([amount, unit]) => `${amount} ${unit}`)
    .join(" ");
}

export function clock(milliseconds) {
  return new Date(milliseconds).toLocaleTimeString("en-GB");
}

export function moment(milliseconds) {
  return new Date(milliseconds).toLocaleString("en-GB");
}

/** "1 message", "2 messages". */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** A table of arguments in a line. */
export function pairs(table) {
  return Object.entries(table ?? {})
    .map(([key, value]) => `${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(", ");
}

/** An exchange by its name; the default one has none. */
export function exchangeName(name) {
  return name || "(default)";
}
