"""The logger for events between the nodes of a cluster."""

from __future__ import annotations

import logging

logger = logging.getLogger("warren.cluster")
