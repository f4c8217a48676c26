"""The `warren` command."""

from __future__ import annotations

import os

from warren.mgmt.command_line import warren

STDERR = 2


def main() -> None:
    _occupy_standard_streams()
    warren(prog_name="warren")


def _occupy_standard_streams() -> None:
    """Open the null device where standard input, output or error is closed.

    Otherwise a socket gets that number, and libuv ends a process that closes it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(descriptor)


if __name__ == "__main__":
    main()
