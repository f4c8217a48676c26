"""Who may use which endpoint: every endpoint and method, as each kind of user.

A line of the table is a path, a method and one or two letters: the kinds of users let in where they
have permissions, and those let in to a virtual host in which no user has any. All other users are
answered 401. Other tests check the answers to users who are let in.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api_client import EVERYTHING, ApiClient

from warren import Broker
from warren.mgmt.api.endpoints import all_endpoints
from warren.mgmt.ctl.control_client import REMOTE_PATHS

KINDS = ("none", "management", "policymaker", "monitoring", "administrator")

LET_IN = {
    "N": {None, *KINDS},
    "U": set(KINDS) - {"none"},
    "M": {"monitoring", "administrator"},
    "P": {"policymaker", "administrator"},
    "A": {"administrator"},
    "L": set[str | None](),
}

TABLE = """
/whoami GET U
/auth GET N
/extensions GET U
/login POST N
/login DELETE N
/openapi.json GET U
/overview GET U
/cluster-name GET U
/cluster-name PUT A
/members GET U
/nodes GET M
/nodes/{node} GET M
/nodes/{node}/memory GET M
/nodes/{node}/memory/relative GET M
/queues GET U
/queues/{vhost} GET U A
/queues/{vhost}/{queue} GET U A
/queues/{vhost}/{queue} PUT U L
/queues/{vhost}/{queue} DELETE U A
/queues/{vhost}/{queue}/contents DELETE U A
/queues/{vhost}/{queue}/actions POST P A
/queues/{vhost}/{queue}/bindings GET U A
/queues/{vhost}/{queue}/get POST U A
/queues/{vhost}/{queue}/messages GET U A
/queues/{vhost}/{queue}/messages/export GET U A
/exchanges GET U
/exchanges/{vhost} GET U A
/exchanges/{vhost}/{exchange} GET U A
/exchanges/{vhost}/{exchange} PUT U L
/exchanges/{vhost}/{exchange} DELETE U A
/exchanges/{vhost}/{exchange}/bindings/source GET U A
/exchanges/{vhost}/{exchange}/bindings/destination GET U A
/exchanges/{vhost}/{exchange}/publish POST U A
/exchanges/{vhost}/{exchange}/delayed GET U A
/exchanges/{vhost}/{exchange}/delayed/{message} DELETE U A
/exchanges/{vhost}/{exchange}/delayed/{message}/send POST U A
/bindings GET U
/bindings/{vhost} GET U A
/bindings/{vhost}/e/{source}/{kind}/{destination} GET U A
/bindings/{vhost}/e/{source}/{kind}/{destination} POST U A
/bindings/{vhost}/e/{source}/{kind}/{destination}/{key} GET U A
/bindings/{vhost}/e/{source}/{kind}/{destination}/{key} DELETE U A
/connections GET U
/connections/username/{user} GET M
/connections/username/{user} DELETE A
/connections/{connection} GET U
/connections/{connection} DELETE U
/connections/{connection}/channels GET U
/vhosts/{vhost}/connections GET U A
/channels GET U
/channels/{channel} GET U
/vhosts/{vhost}/channels GET U A
/consumers GET U
/consumers/{vhost} GET U U
/vhosts GET U
/vhosts/{vhost} GET A
/vhosts/{vhost} PUT A
/vhosts/{vhost} DELETE A
/vhosts/{vhost}/permissions GET A
/vhosts/{vhost}/topic-permissions GET A
/vhosts/{vhost}/start/{node} POST A
/users GET A
/users/without-permissions GET A
/users/bulk-delete POST A
/users/{user} GET A
/users/{user} PUT A
/users/{user} DELETE A
/users/{user}/permissions GET A
/users/{user}/topic-permissions GET A
/permissions GET A
/permissions/{vhost}/{user} GET A
/permissions/{vhost}/{user} PUT A
/permissions/{vhost}/{user} DELETE A
/topic-permissions GET A
/topic-permissions/{vhost}/{user} GET A
/topic-permissions/{vhost}/{user} PUT A
/topic-permissions/{vhost}/{user} DELETE A
/topic-permissions/{vhost}/{user}/{exchange} GET A
/topic-permissions/{vhost}/{user}/{exchange} DELETE A
/policies GET U
/policies/{vhost} GET U A
/policies/{vhost}/{name} GET P A
/policies/{vhost}/{name} PUT P A
/policies/{vhost}/{name} DELETE P A
/operator-policies GET U
/operator-policies/{vhost} GET U A
/operator-policies/{vhost}/{name} GET A
/operator-policies/{vhost}/{name} PUT A
/operator-policies/{vhost}/{name} DELETE A
/parameters GET P
/parameters/{component} GET P
/parameters/{component}/{vhost} GET P A
/parameters/{component}/{vhost}/{name} GET P A
/parameters/{component}/{vhost}/{name} PUT P A
/parameters/{component}/{vhost}/{name} DELETE P A
/global-parameters GET P
/global-parameters/{name} GET P
/global-parameters/{name} PUT P
/global-parameters/{name} DELETE P
/federation-links GET M
/federation-links/state/down GET M
/federation-links/{vhost} GET M M
/federation-links/{vhost}/state/down GET M M
/federation-links/vhost/{vhost}/{id}/{node}/restart DELETE P A
/queues/{vhost}/{queue}/redrive POST U A
/queues/{vhost}/{queue}/replay POST U A
/queues/{vhost}/{queue}/messages/jobs POST U A
/message-jobs GET U
/message-jobs/{vhost} GET U A
/message-jobs/{vhost}/{name} GET U A
/message-jobs/{vhost}/{name} DELETE U A
/message-jobs/{vhost}/{name}/restart POST U A
/trace/{vhost} GET M M
/trace/{vhost}/{message} GET M M
/shovels GET M
/shovels/{vhost} GET M M
/shovels/vhost/{vhost}/{name} GET M M
/shovels/vhost/{vhost}/{name} DELETE P A
/shovels/vhost/{vhost}/{name}/restart DELETE P A
/vhost-limits GET U
/vhost-limits/{vhost} GET U M
/vhost-limits/{vhost}/{name} PUT A
/vhost-limits/{vhost}/{name} DELETE A
/user-limits GET U
/user-limits/{user} GET M
/user-limits/{user}/{name} PUT A
/user-limits/{user}/{name} DELETE A
/definitions GET A
/definitions POST A
/all-configuration GET A
/all-configuration POST A
/definitions/{vhost} GET A
/definitions/{vhost} POST A
/health/checks/alarms GET U
/health/checks/local-alarms GET U
/health/checks/certificate-expiration/{within}/{unit} GET U
/health/checks/port-listener/{port} GET U
/health/checks/protocol-listener/{protocol} GET U
/health/checks/virtual-hosts GET U
/health/checks/node-is-mirror-sync-critical GET U
/health/checks/node-is-quorum-critical GET U
/health/checks/processes GET U
/processes GET M
/aliveness-test/{vhost} GET U L
/healthchecks/node GET U
/healthchecks/node/ GET U
/healthchecks/node/{node} GET U
/feature-flags GET A
/feature-flags/{name}/enable PUT A
/auth/attempts/{node} GET M
/auth/attempts/{node} DELETE M
/auth/attempts/{node}/source GET M
/auth/attempts/{node}/source DELETE M
/reset DELETE A
/reset/{node} DELETE A
/rebalance/queues POST A
/snapshots POST U
/snapshots/nodes GET U
/snapshots/cursors/{cursor} POST U
/snapshots/{snapshot} GET N
/snapshots/{snapshot} PUT N
/snapshots/{snapshot} DELETE N
/snapshots/{snapshot}/token POST U
/snapshots/{snapshot}/log GET N
/snapshots/{snapshot}/log/{file} GET N
/snapshots/{snapshot}/queues/{queue_id} GET N
/unclaimed-messages GET M
/unreadable-definitions GET M
/control/status GET M
/control/cluster-status GET M
/control/members GET M
"""

ENDPOINTS = all_endpoints(lambda http, credentials: pytest.fail("nobody logs in"))
LOCAL = [
    [endpoint.path, method, "L"]
    for endpoint in ENDPOINTS
    for method in endpoint.methods
    if endpoint.path.startswith("/control/") and endpoint.path not in REMOTE_PATHS
]
"""What the command line has for itself is closed to the network, whatever it is."""

LINES = [*(line.split() for line in TABLE.split("\n") if line), *LOCAL]
OWN, FOREIGN, MISSING = "own", "foreign", "missing"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A user of each kind, with permissions in one virtual host and none in the other."""
    with Broker(http_port=0) as running:
        for vhost in (OWN, FOREIGN):
            running.add_vhost(vhost)
        for kind in KINDS:
            running.add_user(kind, kind, () if kind == "none" else (kind,))
            running.set_permissions(kind, OWN)
        yield running


def refused(broker: Broker, user: str | None, path: str, method: str, vhost: str) -> bool:
    names = {"vhost": vhost, "kind": "q", "id": MISSING}
    for name in ("node", "queue", "exchange", "source", "destination", "key", "connection"):
        names[name] = MISSING
    names["position"] = "1"
    for name in (
        "channel",
        "user",
        "name",
        "component",
        "within",
        "unit",
        "port",
        "protocol",
        "message",
    ):
        names[name] = MISSING
    for name in ("snapshot", "file", "queue_id", "cursor"):
        names[name] = MISSING
    body = {} if method in ("PUT", "POST") else None
    return ApiClient(broker, user).ask(method, path.format(**names), body).status == 401


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line))
def test_an_endpoint_lets_in_whom_it_should(broker: Broker, line: list[str]) -> None:
    path, method, let_in, *elsewhere = line
    # What only administrators may do is done where it does no harm.
    where = {MISSING if let_in == "A" else OWN: let_in}
    if elsewhere:
        where[FOREIGN] = elsewhere[0]
    for vhost, letter in where.items():
        entered = {
            user for user in (None, *KINDS) if not refused(broker, user, path, method, vhost)
        }
        assert entered == LET_IN[letter], vhost


def test_every_endpoint_is_in_the_table() -> None:
    there = {(one.path, method) for one in ENDPOINTS for method in one.methods}
    assert there == {(path, method) for path, method, *_ in LINES}


def test_what_is_in_another_vhost_needs_a_second_letter() -> None:
    for path, method, let_in, *elsewhere in LINES:
        in_vhost = "{vhost}" in path and let_in not in "AL"
        assert bool(elsewhere) == in_vhost, (path, method)


LISTS = ("queues", "exchanges", "bindings", "policies", "operator-policies")


@pytest.mark.parametrize("user", KINDS[1:4])
@pytest.mark.parametrize("kind", LISTS)
def test_lists_show_own_vhosts_only(broker: Broker, kind: str, user: str) -> None:
    guest = ApiClient(broker)
    for vhost in (OWN, FOREIGN):
        guest.put(f"/queues/{vhost}/q")
        for policies in ("policies", "operator-policies"):
            policy = {"pattern": "", "definition": {"max-length": 1}}
            guest.put(f"/{policies}/{vhost}/p", policy)
    status, rows = ApiClient(broker, user).get(f"/{kind}")
    assert status == 200
    assert {row["vhost"] for row in rows} == {OWN}


def test_another_vhost_cannot_be_chosen(broker: Broker) -> None:
    for user in KINDS[1:4]:
        assert ApiClient(broker, user).get("/queues", X_Vhost=FOREIGN)[0] == 401
        assert ApiClient(broker, user).get("/queues", X_Vhost=OWN)[0] == 200


def test_an_administrator_enters_every_vhost_but_publishes_in_none_without_permissions(
    broker: Broker,
) -> None:
    guest, administrator = ApiClient(broker), ApiClient(broker, "administrator")
    guest.put(f"/queues/{FOREIGN}/q")
    assert administrator.get(f"/queues/{FOREIGN}/q")[0] == 200
    for path in ("contents", ""):
        assert administrator.delete(f"/queues/{FOREIGN}/q/{path}".rstrip("/"))[0] == 401
    get = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert administrator.post(f"/queues/{FOREIGN}/q/get", get)[0] == 401
    guest.put(f"/permissions/{FOREIGN}/administrator", EVERYTHING)
    assert administrator.delete(f"/queues/{FOREIGN}/q/contents")[0] == 204
    guest.delete(f"/permissions/{FOREIGN}/administrator")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/parameters/operator_policy/own/p", {"pattern": "none", "definition": {"expires": 1}}),
        ("/parameters/vhost-limits/own/limits", {"max-queues": 100}),
        ("/global-parameters/cluster_name", "theirs"),
        ("/global-parameters/internal_cluster_id", "theirs"),
    ],
)
def test_a_policymaker_sets_no_parameter_that_is_for_administrators(
    broker: Broker, path: str, value: object
) -> None:
    maker, administrator = ApiClient(broker, "policymaker"), ApiClient(broker, "administrator")
    refused = {"error": "not_authorised", "reason": "Not administrator user"}
    assert maker.put(path, {"value": value}) == (401, refused)
    assert administrator.put(path, {"value": value})[0] in (201, 204)
    assert maker.delete(path) == (401, refused)
    assert administrator.delete(path)[0] == 204


def test_users_see_their_own_limits_only(broker: Broker) -> None:
    administrator, management = ApiClient(broker, "administrator"), ApiClient(broker, "management")
    for user in ("management", "policymaker"):
        assert administrator.put(f"/user-limits/{user}/max-channels", {"value": 9})[0] == 204
    own = [{"user": "management", "value": {"max-channels": 9}}]
    assert management.get("/user-limits") == (200, own)
    assert management.get("/user-limits/management") == (200, own)
    assert management.get("/user-limits/policymaker")[0] == 401
    assert len(ApiClient(broker, "monitoring").get("/user-limits")[1]) == 2
    for user in ("management", "policymaker"):
        administrator.delete(f"/user-limits/{user}/max-channels")
