"""A node behind a proxy that can be cut."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cutting_proxy import CuttingProxy


@contextmanager
def proxied(port: int) -> Iterator[CuttingProxy]:
    """A proxy on a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    proxy = CuttingProxy(port)
    try:
        asyncio.run_coroutine_threadsafe(proxy.__aenter__(), loop).result()
        proxy.cut_off = lambda: loop.call_soon_threadsafe(_cut_off, proxy)  # type: ignore[attr-defined]
        yield proxy
        asyncio.run_coroutine_threadsafe(proxy.__aexit__(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _cut_off(proxy: CuttingProxy) -> None:
    proxy.refuse = True
    proxy.cut()
