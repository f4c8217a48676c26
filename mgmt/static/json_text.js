// A JSON text set out in lines. It is not decoded and encoded again: large numbers, the order of names
// and names that stand twice stay as they were sent.

const INDENT = "  ";

/** The text in lines, or null if it is no object or list in JSON. */
export function setOut(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  let depth = 0;
  let lines = "";
  const fresh = () => `\n${INDENT.repeat(depth)}`;
  const parts = text.match(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:"]+/gs);
  parts.forEach((part, at) => {
    if (part === "{" || part === "[") {
      const empty = parts[at + 1] === (part === "{" ? "}" : "]");
      depth += 1;
      lines += part + (empty ? "" : fresh());
    } else if (part === "}" || part === "]") {
      depth -= 1;
      const empty = parts[at - 1] === (part === "}" ? "{" : "[");
      lines += (empty ? "" : fresh()) + part;
    } else if (part === ",") {
      lines += part + fresh();
    } else {
      lines += part === ":" ? ": " : part;
    }
  });
  return lines;
}
