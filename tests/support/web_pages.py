"""What tests of the web pages do beside the pages."""

from __future__ import annotations

import json
import urllib.request
from typing import Any
from urllib.error import HTTPError

from warren import Broker

STRANGE = "a/b 100% <script>alert(1)</script> Grüße 🐇"


def declare(channel: Any, name: str, messages: int = 0, **arguments: Any) -> None:
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.confirm_delivery()
    for number in range(messages):
        channel.basic_publish("", name, b"message %d" % number)


def api(broker: Broker, method: str, path: str, body: Any = None) -> Any:
    manager = urllib.request.HTTPPasswordMgrWithPriorAuth()
    manager.add_password(None, broker.http_url, "guest", "guest", is_authenticated=True)
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(manager))
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{broker.http_url}/api/{path}", data, method=method)
    with opener.open(request) as response:
        text = response.read()
    return json.loads(text) if text else None


def api_has(broker: Broker, path: str) -> bool:
    try:
        api(broker, "GET", path)
    except HTTPError as error:
        assert error.code == 404
        error.close()
        return False
    return True
