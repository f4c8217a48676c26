"""A store with damage that is in no index."""

from __future__ import annotations

from pathlib import Path

from exporting import CONTENT_HEADER
from stored_node import ORDERS, StoredNode


def damage_journal(data_directory: Path) -> None:
    """Ten messages for the queue orders, and 3 is damaged; no checkpoint knows of any of them."""
    node = StoredNode(data_directory, CONTENT_HEADER)
    for number in range(10):
        node.publish(b"message %d" % number, ORDERS)
        if number % 5 == 4:
            # Damage is what something follows; at the end it is taken for unfinished.
            node.flush()
    node.die()
    (path,) = (data_directory / "store/log").iterdir()
    data = path.read_bytes()
    assert data.count(b"message 3") == 1
    path.write_bytes(data.replace(b"message 3", b"message #"))
