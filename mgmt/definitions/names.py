"""Names that export and import share."""

from __future__ import annotations

VERSION = "3.10.8"
"""The version of RabbitMQ whose format the definitions have."""

RESERVED_PREFIX = "amq."

IMPORTED_HASH = "imported_definition_hash_value"
"""The global parameter with the hash of the files that were loaded last. It is about this node
only, so it is neither exported nor imported."""
