"""The user of a request, and what the user may do (management_api.md sections 1 and 1.2).

A user's tags say which parts of the API are open, permissions say which virtual hosts. The command
line uses a socket that only the node's own user can open, and may do everything.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from warren.core.access.access_control import LoginRefused, User
from warren.core.access.login_throttle import LoginThrottled
from warren.core.node import Node
from warren.core.vhosts.node_counts import HTTP
from warren.mgmt.http.errors import CHALLENGE, ApiError, LoginFailed, NotAuthorised

LOCAL_USER = "warren-ctl"
"""The name under which logs show the command line."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of a request, logged in. `local`: the request came through the control socket."""

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
        """Whether the user is an administrator, or has permissions in the virtual host.

        An administrator without permissions may not do what AMQP permissions guard.
        """
        return self.is_administrator or node.access.vhost_allowed(self.user, vhost)

    def may_see(self, node: Node, vhost: str) -> bool:
        """Whether lists show the user the contents of the virtual host."""
        return self.is_monitor or self.may_enter(node, vhost)


def local_caller() -> Caller:
    return Caller(User(LOCAL_USER, frozenset({"administrator", "impersonator"})), "ctl", True)


def log_in(node: Node, credentials: tuple[str, str], address: str, loopback: bool) -> Caller:
    """Log a user in. Raises `ApiError` with RabbitMQ's words."""
    try:
        user = node.log_in(*credentials, address, loopback, HTTP)
    except LoginThrottled as refusal:
        raise ApiError(
            429,
            "too_many_requests",
            f"too many failed logins from {address}, try again in {refusal.wait_s:.0f} s",
            {"Retry-After": str(int(refusal.wait_s))},
        ) from refusal
    except LoginRefused as refusal:
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
