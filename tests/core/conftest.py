"""The way to the modules the tests of this folder share."""

from __future__ import annotations

import sys
from pathlib import Path

SIMULATION = str(Path(__file__).parent.parent / "simulation")
if SIMULATION not in sys.path:
    sys.path.append(SIMULATION)
