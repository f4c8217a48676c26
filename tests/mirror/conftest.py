"""The tests of gm run groups of members on the simulated network and store."""

import sys
from pathlib import Path

folder = str(Path(__file__).parent.parent / "simulation")
if folder not in sys.path:
    sys.path.append(folder)
