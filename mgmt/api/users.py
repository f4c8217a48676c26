"""Users: list, one, make, change, delete (policies_and_parameters.md section 5)."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from warren.core.access.limits import validate_user_limits
from warren.core.access.password import DEFAULT_ALGORITHM
from warren.core.definitions.records import UserRecord
from warren.mgmt.api.changes import audit, durable
from warren.mgmt.api.permissions import permission_rows, topic_permission_rows
from warren.mgmt.definitions import items
from warren.mgmt.http.endpoint import CREATED, NO_CONTENT, Endpoint, HttpReply, Right
from warren.mgmt.http.errors import BadRequest
from warren.mgmt.http.listing import Listing, Row, answer, answer_row, answer_rows
from warren.mgmt.http.request import ApiRequest, demanded, text
from warren.mgmt.waiting import visible

Named = tuple[str, UserRecord]


def _row(named: Named) -> Row:
    name, user = named
    return {
        "name": name,
        "password_hash": b64encode(user.password_hash).decode("ascii"),
        "hashing_algorithm": user.hashing_algorithm,
        "tags": list(user.tags),
        "limits": dict(user.limits),
    }


USERS: Listing[Named] = Listing(row=_row, name=lambda named: named[0], paged=False)


async def list_users(request: ApiRequest) -> Any:
    return await answer(request, request.node.access.users(), USERS)


async def list_without_permissions(request: ApiRequest) -> Any:
    permitted = {row["user"] for row in permission_rows(request.node)}
    users = [named for named in request.node.access.users() if named[0] not in permitted]
    return await answer(request, users, USERS)


async def get_user(request: ApiRequest) -> Any:
    name = request.name("user")
    return answer_row(request, _row((name, request.node.access.user(name))))


async def put_user(request: ApiRequest) -> HttpReply:
    """Make or change a user; without a password or its hash it cannot log in with a password."""
    name, body = request.name("user"), await request.body()
    where = f"user '{name}'"
    access = request.node.access
    if body.get("tags") is None:
        raise BadRequest("tags_not_present")
    tags = items.tags(body["tags"], where)
    password, hashed = body.get("password"), body.get("password_hash")
    if password is not None and hashed is not None:
        raise BadRequest("both_password_and_password_hash_are_provided")
    limits = validate_user_limits(body.get("limits") or {})
    new = request.node.metadata.get(("user", name)) is None
    if password is not None:
        commit = access.put_user(name, tags, password=text(body, "password"))
    else:
        commit = access.put_user(
            name,
            tags,
            password_hash=None if hashed is None else items.password_hash(hashed, name),
            hashing_algorithm=text(body, "hashing_algorithm", DEFAULT_ALGORITHM),
        )
    await visible(commit)
    if limits:
        access.set_user_limits(name, limits)
    audit(request, "user_created" if new else "user_changed", user=name, tags=",".join(tags))
    await durable(request)
    return CREATED if new else NO_CONTENT


async def delete_user(request: ApiRequest) -> None:
    _delete(request, request.name("user"))
    await durable(request)


async def delete_users(request: ApiRequest) -> None:
    """Delete all users in the body, or none if one of them does not exist."""
    (names,) = demanded(await request.body(), "users")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadRequest("users should be a list of strings")
    there = {name for name, _ in request.node.access.users()}
    for name in names:
        if name not in there:
            raise BadRequest(["no_such_user", name])
    for name in dict.fromkeys(names):
        _delete(request, name)
    await durable(request)


def _delete(request: ApiRequest, name: str) -> None:
    request.node.access.delete_user(name)
    audit(request, "user_deleted", user=name)


async def list_permissions(request: ApiRequest) -> Any:
    return await answer_rows(request, permission_rows(request.node, _existing(request)))


async def list_topic_permissions(request: ApiRequest) -> Any:
    return await answer_rows(request, topic_permission_rows(request.node, _existing(request)))


def _existing(request: ApiRequest) -> str:
    """The user's name in the path. Raises `NoSuchUser`."""
    name = request.name("user")
    request.node.access.user(name)
    return name


ENDPOINTS = [
    Endpoint("/users", {"GET": list_users}, Right.ADMINISTRATOR, summary="All users"),
    Endpoint(
        "/users/without-permissions",
        {"GET": list_without_permissions},
        Right.ADMINISTRATOR,
        summary="Users who may enter no vhost",
    ),
    Endpoint(
        "/users/bulk-delete",
        {"POST": delete_users},
        Right.ADMINISTRATOR,
        summary="Delete several users",
    ),
    Endpoint(
        "/users/{user}",
        {"GET": get_user, "PUT": put_user, "DELETE": delete_user},
        Right.ADMINISTRATOR,
        summary="One user",
    ),
    Endpoint(
        "/users/{user}/permissions",
        {"GET": list_permissions},
        Right.ADMINISTRATOR,
        summary="Permissions of a user",
    ),
    Endpoint(
        "/users/{user}/topic-permissions",
        {"GET": list_topic_permissions},
        Right.ADMINISTRATOR,
        summary="Topic permissions of a user",
    ),
]
