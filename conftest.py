"""Keep the repository root off sys.path: here `import amqp` must mean PyPI's py-amqp."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent

sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
