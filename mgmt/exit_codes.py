"""The exit codes of `warren server` beyond 0, 1 and 2; sysexits.h names them."""

from __future__ import annotations

EXIT_FAULT = 70
"""An internal fault has ended the node (EX_SOFTWARE)."""
EXIT_DOWN = 70
"""All processes of the broker are down for good (EX_SOFTWARE)."""
EXIT_NOT_STARTED = 71
"""The system could not create a process or a thread (EX_OSERR)."""
EXIT_UNWRITTEN = 74
"""The node was told to stop, and its disk refused the last changes (EX_IOERR)."""
