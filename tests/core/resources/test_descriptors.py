"""How file descriptors are shared out."""

from __future__ import annotations

import pytest

from warren.core.resources.descriptors import share_out


@pytest.mark.parametrize("total", [64, 100, 256, 1024, 4096, 1_048_576])
def test_what_is_kept_from_clients_is_enough_for_the_files_of_the_node(total: int) -> None:
    shares = share_out(total)
    kept = shares.total - shares.clients
    assert 0 < shares.http < shares.clients < total
    assert 2 * shares.log_files + shares.strangers < kept
    assert shares.strangers > 0


def test_a_large_limit_is_for_clients() -> None:
    shares = share_out(1_048_576)
    assert (shares.clients, shares.http, shares.log_files) == (1_048_376, 2000, 64)
