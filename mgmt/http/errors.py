"""The errors of requests, and how they are answered (management_api.md section 1)."""

from __future__ import annotations

from typing import Any

from warren.core.definitions.validation import NotThere, ValidationFailed
from warren.core.errors import AccessRefused, BrokerError, HomeNodeDown, NotFound
from warren.mgmt.definitions.errors import DefinitionsRefused


class ApiError(Exception):
    """A request that is answered with a status and a reason. `reason` may be any JSON."""

    def __init__(
        self, status: int, error: str, reason: Any, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(f"{status} {error}: {reason}")
        self.status = status
        self.error = error
        self.reason = reason
        self.headers = headers or {}


class BadRequest(ApiError):
    """400: the request contradicts itself, or the state of the broker."""

    def __init__(self, reason: Any, error: str = "bad_request") -> None:
        super().__init__(400, error, reason)


class NotAuthorised(ApiError):
    """401, which RabbitMQ answers where other servers answer 403."""

    def __init__(self, reason: str) -> None:
        super().__init__(401, "not_authorised", reason)


class LoginFailed(ApiError):
    """401 for a wrong password."""

    def __init__(self, reason: str = "Login failed") -> None:
        super().__init__(401, "not_authorized", reason, CHALLENGE)


class ObjectNotFound(ApiError):
    """404: the object in the path does not exist."""

    def __init__(self, error: str = "Object Not Found", reason: str = "Not Found") -> None:
        super().__init__(404, error, reason)


OBJECT_CLOSED = "User not authorised to access object"
"""The text for users who may not make policies, when they ask for policies or parameters."""

CHALLENGE = {"WWW-Authenticate": 'Basic realm="RabbitMQ Management"'}


def from_broker(error: BrokerError) -> ApiError:
    """The answer to a request that the broker refused."""
    if isinstance(error, AccessRefused):
        return NotAuthorised("Access refused.")
    if isinstance(error, DefinitionsRefused):
        return BadRequest(error.reason)
    if isinstance(error, ValidationFailed):
        return BadRequest(error.text)
    if isinstance(error, HomeNodeDown):
        # The API shows the queue: that it does not exist would be no answer.
        return ObjectNotFound("not_found", error.text)
    if isinstance(error, NotThere | NotFound):
        return ObjectNotFound()
    return BadRequest(error.text)
