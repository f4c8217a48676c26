"""The `warren` command."""

from __future__ import annotations

import io
import os
import sys

from warren.mgmt.command_line import warren

STDERR = 2


def main() -> None:
    _occupy_standard_streams()
    _escape_unknown_letters()
    warren(prog_name="warren")


def _occupy_standard_streams() -> None:
    """Open the null device where standard input, output or error is closed.

    Otherwise a socket gets that number, and libuv ends a process that closes it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(descriptor)


def _escape_unknown_letters() -> None:
    """Print letters that the encoding of the terminal lacks as escapes, rather than end there."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
