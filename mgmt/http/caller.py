"""Who sends a request, and what that allows (management_api.md sections 1 and 1.2).

Tags of a user say what parts of the API are open; permissions say which virtual hosts. The
command line comes through a socket that only the node's own user can open, and may do everything.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from dataclasses import dataclass

from warren.core.access import LoginRefused, User
from warren.core.node import Node
from warren.core.node_counts import HTTP
from warren.mgmt.http.errors import CHALLENGE, ApiError, LoginFailed, NotAuthorised

FAILURES_MAX = 20
"""Failed logins of a name an address has free; then one comes back every so many seconds."""

FAILURES_OF_ADDRESS_MAX = 200
"""The same for all names together."""

FAILURE_FORGIVEN_S = 3.0

ADDRESSES_MAX = 10_000
"""Addresses remembered; the ones that failed longest ago are forgotten."""

LOCAL_USER = "warren-ctl"
"""Whose name stands in logs for what the command line did."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who logged in. `local`: through the control socket."""

    user: User
    address: str
    local: bool = False

    @property
    def name(self) -> str:
        return self.user.name

    @property
    def is_administrator(self) -> bool:
        return self.local or "administrator" in self.user.tags

    @property
    def is_monitor(self) -> bool:
        return self.is_administrator or "monitoring" in self.user.tags

    @property
    def is_policymaker(self) -> bool:
        return self.is_administrator or "policymaker" in self.user.tags

    @property
    def is_management(self) -> bool:
        return self.is_monitor or self.is_policymaker or "management" in self.user.tags

    def may_enter(self, node: Node, vhost: str) -> bool:
        """Whether the user has permissions in the virtual host, or is above them.

        What AMQP permissions guard is not open to an administrator without them.
        """
        return self.is_administrator or node.access.vhost_allowed(self.user, vhost)

    def may_see(self, node: Node, vhost: str) -> bool:
        """Whether lists show the user what is in the virtual host."""
        return self.is_monitor or self.may_enter(node, vhost)


def local_caller() -> Caller:
    return Caller(User(LOCAL_USER, frozenset({"administrator", "impersonator"})), "ctl", True)


class LoginThrottle:
    """Limits failed logins of each name from each address, so that a client with a wrong password
    does not lock out the others behind its address. Times are seconds on the node's clock."""

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, str | None], tuple[float, float]] = OrderedDict()

    def wait_s(self, address: str, user: str, now: float) -> float:
        """How long the address has to wait before it may try this name again; 0 if not at all."""
        excess = max(
            self._left((address, user), now) - FAILURES_MAX,
            self._left((address, None), now) - FAILURES_OF_ADDRESS_MAX,
        )
        return 0.0 if excess < 0 else (excess + 1) * FAILURE_FORGIVEN_S

    def failed(self, address: str, user: str, now: float) -> None:
        for who in ((address, user), (address, None)):
            self._failures[who] = (self._left(who, now) + 1, now)
            self._failures.move_to_end(who)
        while len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)

    def _left(self, who: tuple[str, str | None], now: float) -> float:
        count, at = self._failures.get(who, (0.0, now))
        return max(0.0, count - (now - at) / FAILURE_FORGIVEN_S)


def log_in(
    node: Node, throttle: LoginThrottle, credentials: tuple[str, str], address: str, loopback: bool
) -> Caller:
    """Raises `ApiError` as RabbitMQ words it."""
    now = node.clock.now()
    wait_s = throttle.wait_s(address, credentials[0], now)
    if wait_s:
        raise ApiError(
            429,
            "too_many_requests",
            f"too many failed logins from {address}, try again in {wait_s:.0f} s",
            {"Retry-After": str(int(wait_s) + 1)},
        )
    try:
        user = node.log_in(*credentials, loopback, HTTP)
    except LoginRefused as refusal:
        throttle.failed(address, credentials[0], now)
        node.login_refused(address, refusal)
        if refusal.only_loopback:
            raise NotAuthorised("User can only log in via localhost") from refusal
        raise LoginFailed() from refusal
    caller = Caller(user, address)
    if not caller.is_management:
        raise NotAuthorised("Not management user")
    return caller


def basic_credentials(token: str) -> tuple[str, str]:
    """User and password from the base64 of `user:password`. Raises `LoginFailed`."""
    try:
        user, colon, password = base64.b64decode(token, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise LoginFailed() from error
    if not colon:
        raise LoginFailed()
    return user, password


def no_credentials() -> ApiError:
    return ApiError(401, "", None, CHALLENGE)
