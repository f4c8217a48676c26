"""Limits of virtual hosts and users (policies_and_parameters.md sections 3 and 4)."""

from __future__ import annotations

from typing import Any

from warren.core.access.access_control import NoSuchUser
from warren.mgmt.api.changes import audit, durable
from warren.mgmt.api.validation_texts import told_of_validation
from warren.mgmt.http.endpoint import Endpoint, Right
from warren.mgmt.http.errors import OBJECT_CLOSED, BadRequest, NotAuthorised
from warren.mgmt.http.listing import Row, answer_rows
from warren.mgmt.http.request import ApiRequest, demanded

# Virtual hosts


async def list_vhost_limits(request: ApiRequest) -> Any:
    """A virtual host whose limits were all removed is listed with an empty list, as in RabbitMQ."""
    seen = {vhost.name for vhost in request.seen_vhosts()}
    rows: list[Row] = [
        {"vhost": vhost, "value": limits or []}
        for vhost, limits in request.node.vhost_limits.all()
        if vhost in seen
    ]
    return await answer_rows(request, rows)


async def get_vhost_limits(request: ApiRequest) -> Any:
    vhost = request.seen_vhost().name
    limits = request.node.vhost_limits.get(vhost)
    return await answer_rows(request, [{"vhost": vhost, "value": limits}] if limits else [])


async def put_vhost_limit(request: ApiRequest) -> None:
    vhost, name = request.vhost().name, request.name("name")
    (value,) = demanded(await request.body(), "value")
    with told_of_validation(escape=False):
        request.node.vhost_limits.put(vhost, name, value)
    audit(request, "vhost_limit_set", vhost=vhost, limit=name, value=value)
    await durable(request)


async def delete_vhost_limit(request: ApiRequest) -> None:
    vhost, name = request.vhost().name, request.name("name")
    request.node.vhost_limits.remove(vhost, name)
    audit(request, "vhost_limit_cleared", vhost=vhost, limit=name)
    await durable(request)


# Users


def _may_see(request: ApiRequest, user: str) -> bool:
    """Only monitors may see other users and their limits."""
    return request.caller.is_monitor or request.caller.name == user


async def list_user_limits(request: ApiRequest) -> Any:
    rows = [
        {"user": name, "value": dict(user.limits)}
        for name, user in request.node.access.users()
        if user.limits and _may_see(request, name)
    ]
    return await answer_rows(request, rows)


async def get_user_limits(request: ApiRequest) -> Any:
    name = request.name("user")
    if not _may_see(request, name):
        raise NotAuthorised(OBJECT_CLOSED)
    limits = request.node.access.user(name).limits
    return await answer_rows(request, [{"user": name, "value": dict(limits)}] if limits else [])


async def put_user_limit(request: ApiRequest) -> None:
    user, name = request.name("user"), request.name("name")
    (value,) = demanded(await request.body(), "value")
    try:
        request.node.access.set_user_limits(user, {name: value})
    except NoSuchUser as error:
        raise BadRequest(["no_such_user", user]) from error
    audit(request, "user_limit_set", user=user, limit=name, value=value)
    await durable(request)


async def delete_user_limit(request: ApiRequest) -> None:
    user, name = request.name("user"), request.name("name")
    request.node.access.clear_user_limits(user, name)
    audit(request, "user_limit_cleared", user=user, limit=name)
    await durable(request)


ENDPOINTS = [
    Endpoint("/vhost-limits", {"GET": list_vhost_limits}, summary="Limits of all vhosts"),
    Endpoint("/vhost-limits/{vhost}", {"GET": get_vhost_limits}, summary="Limits of a vhost"),
    Endpoint(
        "/vhost-limits/{vhost}/{name}",
        {"PUT": put_vhost_limit, "DELETE": delete_vhost_limit},
        Right.ADMINISTRATOR,
        summary="One limit of a vhost",
    ),
    Endpoint("/user-limits", {"GET": list_user_limits}, summary="Limits of all users"),
    Endpoint("/user-limits/{user}", {"GET": get_user_limits}, summary="Limits of a user"),
    Endpoint(
        "/user-limits/{user}/{name}",
        {"PUT": put_user_limit, "DELETE": delete_user_limit},
        Right.ADMINISTRATOR,
        summary="One limit of a user",
    ),
]
