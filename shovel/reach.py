"""How to reach the broker that a URI names: over the network, or within this node.

A URI without a host means this cluster. If it has no user either, the connection is let in as the
user who set the parameter with this URI, with that user's present permissions; an operator may do
everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from warren.client.connection import BrokerTarget, ConnectionFailed, Dial, network
from warren.client.handshake import Login
from warren.core.access.access_control import AccessControl, LoginRefused, User
from warren.core.definitions.validation import ValidationFailed
from warren.shovel.uri import DEFAULT_PASSWORD, DEFAULT_USER, Uri

OPERATOR = User("operator", frozenset(), unrestricted=True)
"""The user of connections within the node for parameters that an operator set."""
IMPERSONATOR = "impersonator"


class ConnectWithin(Protocol):
    def __call__(
        self, new_client: Callable[[], asyncio.Protocol], user: User | None
    ) -> Any:  # An awaitable.
        """Connect a client with this node. If `user` is None, it logs in with a password."""
        ...


class Reach:
    """Reaches brokers from this node."""

    def __init__(self, access: AccessControl, connect_within: ConnectWithin) -> None:
        self._access = access
        self._connect_within = connect_within

    def check(self, uri: Uri, user: User | None) -> None:
        """Raise `ValidationFailed` if the URI leads into this cluster, to a virtual host to which
        the user who is setting it has no access. None is an operator."""
        if user is None or uri.host is not None:
            return
        if not self._access.vhost_allowed(user, uri.vhost):
            raise ValidationFailed(f'user "{user.name}" may not connect to vhost "{uri.vhost}"')

    def target(
        self, uri: Uri, connection_name: str, user: str, *, impersonates: bool
    ) -> BrokerTarget:
        """The target for the broker of the URI.

        A connection within this node is let in as `user`; an empty name is an operator. If it
        `impersonates`, the messages it publishes may have the `user_id` of other users.
        """
        login = Login(
            DEFAULT_USER if uri.username is None else uri.username,
            DEFAULT_PASSWORD if uri.password is None else uri.password,
            uri.vhost,
            connection_name,
            uri.mechanism,
        )
        if uri.host is not None:
            return BrokerTarget(uri.shown, _dial(uri), login, uri.tuning, uri.timeout_s)
        if uri.username is not None:
            dial = self._dial_within(lambda: None)
        else:
            dial = self._dial_within(lambda: self._admitted(user, impersonates=impersonates))
            login = login._replace(mechanism="EXTERNAL")
        return BrokerTarget(uri.shown, dial, login, uri.tuning, uri.timeout_s)

    def _dial_within(self, admitted: Callable[[], User | None]) -> Dial:
        async def dial(new_client: Callable[[], asyncio.Protocol]) -> None:
            await self._connect_within(new_client, admitted())

        return dial

    def _admitted(self, name: str, *, impersonates: bool) -> User:
        """The user as whom the connection is let in. Raises `ConnectionFailed` if the login is
        refused."""
        user = OPERATOR
        if name:
            try:
                user = self._access.authenticate_by_certificate(name, from_loopback=True)
            except LoginRefused as refusal:
                raise ConnectionFailed(403, f"user '{name}': {refusal.reason}") from None
        tags = user.tags | {IMPERSONATOR} if impersonates else user.tags
        return User(user.name, tags, user.unrestricted)


def _dial(uri: Uri) -> Dial:
    async def dial(new_client: Callable[[], asyncio.Protocol]) -> None:
        assert uri.host is not None
        tls, name = None, None
        if uri.tls is not None:
            # The files may have been renewed since the last connection.
            tls, name = uri.tls.context(), uri.tls.server_name
        await network(uri.host, uri.port, tls, name)(new_client)

    return dial
