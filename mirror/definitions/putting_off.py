"""Puts off work that may wait while a node has definitions to write.

When a node dies that led thousands of queues, its neighbours and the best candidates write their
definitions first. Others, who would act if these do not, give them more time as long as there is
much to write: two nodes that write the same definition delay thousands of others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from warren.core.ports import Clock, MetadataStore

PUT_OFF_S = 1.0
PUT_OFF_MAX = 15


def when_written(
    store: MetadataStore, clock: Clock, callback: Callable[[], None], put_off: int = 0
) -> None:
    """Call back when a look at the store finds nothing that is not written yet, at once or in some
    seconds; after `PUT_OFF_MAX` looks in any case."""
    if store.uncommitted() is None or put_off == PUT_OFF_MAX:
        callback()
    else:
        again = partial(when_written, store, clock, callback, put_off + 1)
        clock.call_later(PUT_OFF_S, again)
