"""The way to the modules the tests of this folder share."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "simulation", HERE.parent / "amqp"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
