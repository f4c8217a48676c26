"""Why definitions were not imported.

    DefinitionsRefused
    ├── NotDefinitions      no JSON, or not of this shape
    ├── InvalidUser         a user that lacks something or has too much
    ├── NoSuchUserYet       permissions of a user who does not exist
    ├── NoSuchVhostYet      something in a virtual host that does not exist
    ├── QueueLimitReached   more queues than the limit of a virtual host allows
    ├── InvalidItem         any other item that the broker refuses to declare or to set
    └── DefinitionsFileRefused   any of these in a file, or a file that cannot be read

`text` is for people, `reason` is the reason in RabbitMQ's HTTP answer with status 400: a text, or a
list where RabbitMQ has a tuple.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from warren.core.errors import BrokerError

Reason: TypeAlias = str | list[str]


class DefinitionsRefused(BrokerError):
    """The import ended here. Items before it stay imported: imports are not transactions."""

    def __init__(self, text: str, reason: Reason | None = None) -> None:
        super().__init__(text)
        self.reason: Reason = text if reason is None else reason


class NotDefinitions(DefinitionsRefused):
    """The definitions are not an object of lists of objects, or a value has a wrong type."""


class InvalidUser(DefinitionsRefused):
    pass


class NoSuchUserYet(DefinitionsRefused):
    def __init__(self, user: str) -> None:
        super().__init__(
            f'Please create user "{user}" prior to importing definitions.', ["no_such_user", user]
        )


class NoSuchVhostYet(DefinitionsRefused):
    def __init__(self, vhost: str) -> None:
        super().__init__(
            f'Please create virtual host "{vhost}" prior to importing definitions.',
            ["no_such_vhost", vhost],
        )


class QueueLimitReached(DefinitionsRefused):
    def __init__(self, vhost: str, adding: int, existing: int, limit: int) -> None:
        text = (
            f'Adding {adding} queue(s) to virtual host "{vhost}" would exceed the limit of'
            f" {limit} queue(s).\n\nThis virtual host currently has {existing} queue(s) defined."
            "\n\nImport aborted!"
        )
        super().__init__(text, ["vhost_limit_exceeded", text])


class InvalidItem(DefinitionsRefused):
    pass


class DefinitionsFileRefused(DefinitionsRefused):
    def __init__(self, path: Path, text: str) -> None:
        super().__init__(f"definitions in {path} not loaded: {text}")
        self.path = path
