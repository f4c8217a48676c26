"""Permissions and topic permissions of users in virtual hosts (management_api.md section 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warren.core.access.access_control import NoSuchUser
from warren.core.definitions.records import PermissionRecord, TopicPermissionRecord
from warren.core.definitions.validation import NoSuchVhost
from warren.core.node import Node
from warren.core.patterns.pattern import InvalidPattern
from warren.core.ports import Commit
from warren.mgmt.api.changes import audit, durable
from warren.mgmt.http.endpoint import CREATED, NO_CONTENT, Endpoint, HttpReply, Right
from warren.mgmt.http.errors import BadRequest, ObjectNotFound
from warren.mgmt.http.listing import Row, answer_row, answer_rows
from warren.mgmt.http.request import ApiRequest, demanded


def permission_rows(node: Node, user: str | None = None, vhost: str | None = None) -> list[Row]:
    """Permissions, sorted by virtual host and user: all, or those of a user, a vhost, or both."""
    rows = []
    for key, record, _ in node.metadata.records(_prefix("permission", user)):
        assert isinstance(record, PermissionRecord)
        if vhost in (None, key[2]):
            row: Row = {"user": key[1], "vhost": key[2], "configure": record.configure}
            rows.append({**row, "write": record.write, "read": record.read})
    return _sorted(rows)


def topic_permission_rows(
    node: Node, user: str | None = None, vhost: str | None = None
) -> list[Row]:
    """Topic permissions, chosen and sorted as by `permission_rows`.

    A user may have one for each exchange of a virtual host.
    """
    rows = []
    for key, record, _ in node.metadata.records(_prefix("topic_permission", user)):
        assert isinstance(record, TopicPermissionRecord)
        if vhost in (None, key[2]):
            row: Row = {"user": key[1], "vhost": key[2], "exchange": key[3]}
            rows.append({**row, "write": record.write, "read": record.read})
    return _sorted(rows)


def _prefix(kind: str, user: str | None) -> tuple[str, ...]:
    return (kind,) if user is None else (kind, user)


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["vhost"], row["user"]))


# Permissions


async def list_permissions(request: ApiRequest) -> Any:
    return await answer_rows(request, permission_rows(request.node))


def _permissions(request: ApiRequest) -> list[Row]:
    """The row of the user and vhost in the path, in a list; empty if the user has no permissions.

    Raises `ObjectNotFound` or `NoSuchUser` if the vhost or the user does not exist.
    """
    user, vhost = _user_and_vhost(request)
    return permission_rows(request.node, user, vhost)


async def get_permissions(request: ApiRequest) -> Any:
    rows = _permissions(request)
    if not rows:
        raise ObjectNotFound()
    return answer_row(request, rows[0])


async def put_permissions(request: ApiRequest) -> HttpReply:
    user, vhost = request.name("user"), request.name("vhost")
    configure, write, read = _texts(await request.body(), "configure", "write", "read")
    before = permission_rows(request.node, user, vhost)

    def change() -> Commit:
        return request.node.access.set_permissions(user, vhost, configure, write, read)

    _set(change)
    audit(
        request,
        "permissions_set",
        user=user,
        vhost=vhost,
        configure=configure,
        write=write,
        read=read,
    )
    await durable(request)
    return NO_CONTENT if before else CREATED


async def delete_permissions(request: ApiRequest) -> None:
    user, vhost = _user_and_vhost(request)
    if not _permissions(request):
        raise ObjectNotFound()
    request.node.access.clear_permissions(user, vhost)
    audit(request, "permissions_cleared", user=user, vhost=vhost)
    await durable(request)


# Topic permissions


async def list_topic_permissions(request: ApiRequest) -> Any:
    return await answer_rows(request, topic_permission_rows(request.node))


def _topic_permissions(request: ApiRequest) -> list[Row]:
    """The user's topic permissions in the vhost. Raises `ObjectNotFound` if there are none."""
    rows = topic_permission_rows(request.node, *_user_and_vhost(request))
    if not rows:
        raise ObjectNotFound()
    return rows


async def get_topic_permissions(request: ApiRequest) -> Any:
    return await answer_rows(request, _topic_permissions(request))


async def get_topic_permission(request: ApiRequest) -> Any:
    exchange = request.exchange_name("exchange")
    rows = [row for row in _topic_permissions(request) if row["exchange"] == exchange]
    return await answer_rows(request, rows)


async def put_topic_permission(request: ApiRequest) -> HttpReply:
    user, vhost = request.name("user"), request.name("vhost")
    exchange, write, read = _texts(await request.body(), "exchange", "write", "read")
    before = topic_permission_rows(request.node, user, vhost)

    def change() -> Commit:
        return request.node.access.set_topic_permissions(user, vhost, exchange, write, read)

    _set(change)
    audit(
        request,
        "topic_permissions_set",
        user=user,
        vhost=vhost,
        exchange=exchange,
        write=write,
        read=read,
    )
    await durable(request)
    return NO_CONTENT if before else CREATED


async def delete_topic_permissions(request: ApiRequest) -> None:
    await _clear_topic_permissions(request, None)


async def delete_topic_permission(request: ApiRequest) -> None:
    await _clear_topic_permissions(request, request.exchange_name("exchange"))


async def _clear_topic_permissions(request: ApiRequest, exchange: str | None) -> None:
    user, vhost = _user_and_vhost(request)
    _topic_permissions(request)
    request.node.access.clear_topic_permissions(user, vhost, exchange)
    audit(request, "topic_permissions_cleared", user=user, vhost=vhost, exchange=exchange)
    await durable(request)


# Shared by both kinds


def _user_and_vhost(request: ApiRequest) -> tuple[str, str]:
    """The names in the path. Raises `ObjectNotFound` or `NoSuchUser`."""
    vhost, user = request.vhost().name, request.name("user")
    request.node.access.user(user)
    return user, vhost


def _texts(body: dict[str, Any], *names: str) -> list[str]:
    values = demanded(body, *names)
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, str):
            raise BadRequest(f"{name} should be a string")
    return values


def _set(change: Callable[[], Commit]) -> None:
    try:
        change()
    except InvalidPattern as error:
        raise BadRequest(["invalid_regexp", error.pattern, error.reason]) from error
    except (NoSuchUser, NoSuchVhost) as error:
        raise BadRequest("vhost_or_user_not_found") from error


ENDPOINTS = [
    Endpoint(
        "/permissions", {"GET": list_permissions}, Right.ADMINISTRATOR, summary="All permissions"
    ),
    Endpoint(
        "/permissions/{vhost}/{user}",
        {"GET": get_permissions, "PUT": put_permissions, "DELETE": delete_permissions},
        Right.ADMINISTRATOR,
        summary="Permissions of a user in a vhost",
    ),
    Endpoint(
        "/topic-permissions",
        {"GET": list_topic_permissions},
        Right.ADMINISTRATOR,
        summary="All topic permissions",
    ),
    Endpoint(
        "/topic-permissions/{vhost}/{user}",
        {
            "GET": get_topic_permissions,
            "PUT": put_topic_permission,
            "DELETE": delete_topic_permissions,
        },
        Right.ADMINISTRATOR,
        summary="Topic permissions of a user in a vhost",
    ),
    Endpoint(
        "/topic-permissions/{vhost}/{user}/{exchange}",
        {"GET": get_topic_permission, "DELETE": delete_topic_permission},
        Right.ADMINISTRATOR,
        summary="Topic permissions of a user for an exchange",
    ),
]
