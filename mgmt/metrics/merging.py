"""The metrics of several processes as one text, in which each line has a label for its process."""

from __future__ import annotations

from collections.abc import Mapping

PROCESS_LABEL = "process"
UP = b"warren_process_up"
UP_HEAD = (
    b"# TYPE warren_process_up gauge\n"
    b"# HELP warren_process_up Whether a process of the broker runs and answers\n"
)


def merged(texts: Mapping[int, bytes | None]) -> bytes:
    """One text with the lines of all texts, those of one metric together, as the format demands.

    `texts` has the text of each process by its number, None if the process has not answered. Lines
    of a metric are in the order of `texts`.
    """
    heads: dict[bytes, list[bytes]] = {}
    lines: dict[bytes, list[bytes]] = {}
    for number, text in texts.items():
        label = f'{PROCESS_LABEL}="{number}"'.encode()
        for line in (text or b"").splitlines():
            if line.startswith(b"#"):
                name = line.split(b" ", 3)[2]
                head = heads.setdefault(name, [])
                if line not in head:
                    head.append(line)
                lines.setdefault(name, [])
            elif line:
                name, labelled = _labelled(line, label)
                lines.setdefault(name, []).append(labelled)
    ups = [
        b'%s{%s="%d"} %d\n' % (UP, PROCESS_LABEL.encode(), number, text is not None)
        for number, text in texts.items()
    ]
    families = [b"\n".join((*heads.get(name, ()), *found, b"")) for name, found in lines.items()]
    return b"".join((*families, UP_HEAD, *ups))


def _labelled(line: bytes, label: bytes) -> tuple[bytes, bytes]:
    """The name of a metric, and its line with `label` as its first label."""
    name, brace, rest = line.partition(b"{")
    if brace and b" " not in name:
        return name, b"%s{%s,%s" % (name, label, rest)
    name, _, value = line.partition(b" ")
    return name, b"%s{%s} %s" % (name, label, value)
