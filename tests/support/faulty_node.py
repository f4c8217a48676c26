"""A node in which something fails that nobody expects, once a file is there.

python faulty_node.py FILE server --data-dir ...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from warren.mgmt.command_line import warren
from warren.persist.log.log_writer import FilePiece, LogWriter

FAULT = "nobody expected this"


def main() -> None:
    trigger = Path(sys.argv.pop(1))
    write = LogWriter.write

    def failing(self: LogWriter, pieces: Sequence[FilePiece]) -> None:
        if trigger.exists():
            raise ValueError(FAULT)
        write(self, pieces)

    LogWriter.write = failing  # type: ignore[method-assign]
    warren(prog_name="warren")


if __name__ == "__main__":
    main()
