"""A browser, a broker and a window of its pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pika
import pytest

from warren import Broker

if TYPE_CHECKING:
    # Tests are skipped where there is no Playwright.
    from playwright.sync_api import Browser
    from web_ui import WebUi


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from web_ui import chromium

    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http_port=0, stats_interval_ms=1000) as started:
        yield started


@pytest.fixture(scope="module")
def window(browser: Browser, broker: Broker) -> Iterator[WebUi]:
    from web_ui import WebUi

    with WebUi(browser, broker.http_url) as entered:
        entered.enter()
        yield entered


@pytest.fixture
def ui(window: WebUi) -> Iterator[WebUi]:
    """A window of an administrator, on the overview."""
    window.start_anew()
    yield window
    window.check_complaints()


@pytest.fixture
def channel(broker: Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    yield connection.channel()
    connection.close()
