"""Policies and operator policies (policies_and_parameters.md section 1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from warren.core.definitions.validation import NotThere
from warren.core.policies.policy_set import Policy
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt.api.changes import audit, durable
from warren.mgmt.api.validation_texts import told_of_validation
from warren.mgmt.http.endpoint import CREATED, NO_CONTENT, Endpoint, HttpReply, Right
from warren.mgmt.http.listing import Row, answer_row, answer_rows
from warren.mgmt.http.request import ApiRequest, demanded


def policy_row(policy: Policy) -> Row:
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": dict(policy.definition),
        "priority": policy.priority,
    }


class PolicyEndpoints:
    """The endpoints of policies, or of operator policies."""

    def __init__(self, *, operator: bool) -> None:
        self._operator = operator
        self._kind = "operator_policy" if operator else "policy"

    async def list_all(self, request: ApiRequest) -> Any:
        return await answer_rows(request, self._rows(request, request.visible_vhosts()))

    async def list_vhost(self, request: ApiRequest) -> Any:
        return await answer_rows(request, self._rows(request, [request.vhost()]))

    def _rows(self, request: ApiRequest, vhosts: Iterable[VirtualHost]) -> list[Row]:
        """The policies of these virtual hosts, by virtual host and priority, the lowest first."""
        policies = [
            policy
            for vhost in vhosts
            for policy in request.node.policies.of_vhost(vhost.name, operator=self._operator)
        ]
        policies.sort(key=lambda policy: (policy.vhost, policy.priority, policy.name))
        return [policy_row(policy) for policy in policies]

    async def get(self, request: ApiRequest) -> Any:
        return answer_row(request, policy_row(self._policy(request)))

    def _policy(self, request: ApiRequest) -> Policy:
        """The policy in the path. Raises `ApiError` or `NotThere`."""
        vhost = request.vhost_of_policies().name
        return request.node.policies.get(vhost, request.name("name"), operator=self._operator)

    async def put(self, request: ApiRequest) -> HttpReply:
        vhost, name = request.vhost_of_policies().name, request.name("name")
        body = await request.body()
        pattern, definition = demanded(body, "pattern", "definition")
        if isinstance(definition, dict):
            # The refusal names unknown settings in this order.
            definition = dict(sorted(definition.items()))
        policies = request.node.policies
        try:
            policies.get(vhost, name, operator=self._operator)
            reply = NO_CONTENT
        except NotThere:
            reply = CREATED
        with told_of_validation(escape=not self._operator):
            policies.set(
                vhost,
                name,
                pattern,
                definition,
                body.get("priority", 0),
                body.get("apply-to", "all"),
                operator=self._operator,
            )
        audit(request, f"{self._kind}_set", vhost=vhost, policy=name, pattern=pattern)
        await durable(request)
        return reply

    async def delete(self, request: ApiRequest) -> None:
        policy = self._policy(request)
        request.node.policies.clear(policy.vhost, policy.name, operator=self._operator)
        audit(request, f"{self._kind}_cleared", vhost=policy.vhost, policy=policy.name)
        await durable(request)


def _endpoints(path: str, right: Right, summary: str, *, operator: bool) -> list[Endpoint]:
    """The endpoints below `path`. `right` is needed to see, set or delete a single policy; every
    user of a virtual host may list all of its policies."""
    does = PolicyEndpoints(operator=operator)
    return [
        Endpoint(path, {"GET": does.list_all}, summary=f"All {summary}"),
        Endpoint(f"{path}/{{vhost}}", {"GET": does.list_vhost}, summary=f"A vhost's {summary}"),
        Endpoint(
            f"{path}/{{vhost}}/{{name}}",
            {"GET": does.get, "PUT": does.put, "DELETE": does.delete},
            right,
            summary=f"One of the {summary}",
        ),
    ]


ENDPOINTS = [
    *_endpoints("/policies", Right.POLICYMAKER, "policies", operator=False),
    *_endpoints("/operator-policies", Right.ADMINISTRATOR, "operator policies", operator=True),
]
