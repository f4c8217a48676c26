"""What export and import agree on."""

from __future__ import annotations

VERSION = "3.10.8"
"""The version of RabbitMQ whose definitions these are."""

RESERVED_PREFIX = "amq."

IMPORTED_HASH = "imported_definition_hash_value"
"""The global parameter that says which files were loaded last. It is true of this node only, so it
is neither exported nor imported."""
