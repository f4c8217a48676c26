"""Runtime parameters and global parameters (policies_and_parameters.md section 2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from warren.core.access.limits import COMPONENT as VHOST_LIMITS
from warren.core.definitions.validation import NotThere
from warren.core.policies.parameters import CLUSTER_NAME, INTERNAL_CLUSTER_ID, Parameter
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt.api.changes import audit, durable
from warren.mgmt.api.policies import policy_row
from warren.mgmt.api.validation_texts import told_of_validation
from warren.mgmt.http.endpoint import CREATED, NO_CONTENT, Endpoint, HttpReply, Right
from warren.mgmt.http.listing import Row, answer_row, answer_rows
from warren.mgmt.http.request import ApiRequest, demanded
from warren.mgmt.waiting import taken

ADMINISTERED = frozenset({"operator_policy", VHOST_LIMITS})
ADMINISTERED_GLOBALS = frozenset({CLUSTER_NAME, INTERNAL_CLUSTER_ID})
"""Components and global parameters that only administrators may set: the endpoints made for them
are for administrators only, too."""

POLICY = "policy"
"""The component under which policies can be read as parameters; they cannot be set by it."""

# Parameters


async def list_parameters(request: ApiRequest) -> Any:
    rows = _rows(request.node.parameters.all(), request.visible_vhosts())
    return await answer_rows(request, rows)


async def list_component(request: ApiRequest) -> Any:
    rows = _rows(_of_component(request), request.visible_vhosts())
    return await answer_rows(request, rows)


async def list_component_of_vhost(request: ApiRequest) -> Any:
    rows = _rows(_of_component(request), [request.vhost_of_policies()])
    return await answer_rows(request, rows)


def _of_component(request: ApiRequest) -> list[Parameter]:
    component = request.name("component")
    if component != POLICY:
        return request.node.parameters.all(component)
    return [
        Parameter(POLICY, policy.vhost, policy.name, _as_value(policy_row(policy)))
        for policy in request.node.policies.all()
    ]


def _as_value(row: Row) -> Row:
    return {key: row[key] for key in ("apply-to", "definition", "pattern", "priority")}


def _rows(parameters: Iterable[Parameter], vhosts: list[VirtualHost]) -> list[Row]:
    visible = {vhost.name for vhost in vhosts}
    rows = [parameter._asdict() for parameter in parameters if parameter.vhost in visible]
    return sorted(rows, key=lambda row: (row["vhost"], row["name"], row["component"]))


def _path(request: ApiRequest) -> tuple[str, str, str]:
    """Component, virtual host and name in the path. Raises `ApiError`."""
    vhost = request.vhost_of_policies().name
    return request.name("component"), vhost, request.name("name")


async def get_parameter(request: ApiRequest) -> Any:
    component, vhost, name = _path(request)
    if component == POLICY:
        value = _as_value(policy_row(request.node.policies.get(vhost, name)))
    else:
        value = request.node.parameters.get(component, vhost, name)
    return answer_row(request, Parameter(component, vhost, name, value)._asdict())


def _path_to_change(request: ApiRequest) -> tuple[str, str, str]:
    if request.name("component") in ADMINISTERED:
        Right.ADMINISTRATOR.check(request.caller)
    return _path(request)


async def put_parameter(request: ApiRequest) -> HttpReply:
    component, vhost, name = _path_to_change(request)
    (value,) = demanded(await request.body(), "value")
    parameters = request.node.parameters
    try:
        parameters.get(component, vhost, name)
        reply = NO_CONTENT
    except NotThere:
        reply = CREATED
    if component == POLICY:
        # Raises: policies are refused here with a text of their own, without the prefix.
        parameters.set(component, vhost, name, value)
    user = None if request.caller.local else request.caller.user
    with told_of_validation(escape=True):
        await taken(lambda: parameters.set(component, vhost, name, value, user))
    audit(request, "parameter_set", vhost=vhost, component=component, name=name)
    await durable(request)
    return reply


async def delete_parameter(request: ApiRequest) -> None:
    component, vhost, name = _path_to_change(request)
    request.node.parameters.clear(component, vhost, name)
    audit(request, "parameter_cleared", vhost=vhost, component=component, name=name)
    await durable(request)


# Global parameters


async def list_global_parameters(request: ApiRequest) -> Any:
    rows = [{"name": name, "value": value} for name, value in request.node.global_parameters.all()]
    return await answer_rows(request, rows)


async def get_global_parameter(request: ApiRequest) -> Any:
    name = request.name("name")
    value = request.node.global_parameters.get(name)
    return answer_row(request, {"name": name, "value": value})


def _global_to_change(request: ApiRequest) -> str:
    name = request.name("name")
    if name in ADMINISTERED_GLOBALS:
        Right.ADMINISTRATOR.check(request.caller)
    return name


async def put_global_parameter(request: ApiRequest) -> HttpReply:
    name = _global_to_change(request)
    (value,) = demanded(await request.body(), "value")
    new = request.node.metadata.get(("global_parameter", name)) is None
    request.node.global_parameters.set(name, value)
    audit(request, "global_parameter_set", name=name)
    await durable(request)
    return CREATED if new else NO_CONTENT


async def delete_global_parameter(request: ApiRequest) -> None:
    name = _global_to_change(request)
    request.node.global_parameters.clear(name)
    audit(request, "global_parameter_cleared", name=name)
    await durable(request)


ENDPOINTS = [
    Endpoint("/parameters", {"GET": list_parameters}, Right.POLICYMAKER, summary="All parameters"),
    Endpoint(
        "/parameters/{component}",
        {"GET": list_component},
        Right.POLICYMAKER,
        summary="Parameters of a component",
    ),
    Endpoint(
        "/parameters/{component}/{vhost}",
        {"GET": list_component_of_vhost},
        Right.POLICYMAKER,
        summary="Parameters of a component in a vhost",
    ),
    Endpoint(
        "/parameters/{component}/{vhost}/{name}",
        {"GET": get_parameter, "PUT": put_parameter, "DELETE": delete_parameter},
        Right.POLICYMAKER,
        summary="One parameter",
    ),
    Endpoint(
        "/global-parameters",
        {"GET": list_global_parameters},
        Right.POLICYMAKER,
        summary="All global parameters",
    ),
    Endpoint(
        "/global-parameters/{name}",
        {
            "GET": get_global_parameter,
            "PUT": put_global_parameter,
            "DELETE": delete_global_parameter,
        },
        Right.POLICYMAKER,
        summary="One global parameter",
    ),
]
