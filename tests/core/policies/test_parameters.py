"""Runtime parameters and global parameters."""

from __future__ import annotations

import re
from typing import Any

import pytest

from warren.core.access.limits import VhostLimits
from warren.core.definitions.records import VirtualHostRecord
from warren.core.definitions.validation import NotThere, ValidationFailed
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.policies.parameters import GlobalParameters, Parameter, Parameters
from warren.core.policies.policy import Policies
from warren.core.ports import Write


@pytest.fixture
def store() -> VolatileMetadataStore:
    store = VolatileMetadataStore()
    store.transact([Write(("vhost", name), VirtualHostRecord()) for name in ("/", "other")])
    return store


@pytest.fixture
def policies(store: VolatileMetadataStore) -> Policies:
    return Policies(store)


@pytest.fixture
def parameters(store: VolatileMetadataStore, policies: Policies) -> Parameters:
    return Parameters(store, VhostLimits(store), policies, "node@here")


OPERATOR = {"pattern": "^q", "definition": {"max-length": 1}}


@pytest.mark.parametrize(
    ("component", "name", "value", "text"),
    [
        ("bogus", "n", 1, "component bogus not found"),
        ("policy", "p", OPERATOR, "policies may not be set using this method"),
        (
            "vhost-limits",
            "limits",
            {"bogus": 1},
            'Unrecognised terms [{<<"bogus">>,1}] in limits',
        ),
        (
            "vhost-limits",
            "other",
            {"max-queues": 1},
            "name of vhost-limits should be limits, not other",
        ),
        ("operator_policy", "p", {"pattern": ""}, 'Key "definition" not found in p'),
        (
            "operator_policy",
            "p",
            {**OPERATOR, "bogus": 1},
            'Unrecognised terms [{<<"bogus">>,1}] in p',
        ),
        (
            "operator_policy",
            "p",
            {"pattern": "", "definition": {"ha-mode": "all"}},
            '[{<<"ha-mode">>,<<"all">>}] are not recognised policy settings',
        ),
    ],
)
def test_what_cannot_be_set_is_named(
    parameters: Parameters, component: str, name: str, value: Any, text: str
) -> None:
    with pytest.raises(ValidationFailed) as refused:
        parameters.set(component, "/", name, value)
    assert refused.value.text == text
    assert parameters.all() == []


def test_limits_are_the_parameter_they_are_stored_as(
    parameters: Parameters, store: VolatileMetadataStore
) -> None:
    parameters.set("vhost-limits", "/", "limits", {"max-queues": 3})
    assert VhostLimits(store).get("/") == {"max-queues": 3}
    assert parameters.get("vhost-limits", "/", "limits") == {"max-queues": 3}
    parameters.clear("vhost-limits", "/", "limits")
    assert VhostLimits(store).get("/") == {}


def test_operator_policies_are_parameters_and_policies_are_not(
    parameters: Parameters, policies: Policies
) -> None:
    policies.set("/", "hidden", "", {"max-length": 1})
    parameters.set("operator_policy", "/", "shown", OPERATOR)
    assert policies.applied("/", "q", "queue").operator_policy == "shown"
    value = {**OPERATOR, "priority": 0, "apply-to": "all"}
    assert parameters.all() == [Parameter("operator_policy", "/", "shown", value)]
    assert parameters.get("operator_policy", "/", "shown") == value
    parameters.clear("operator_policy", "/", "shown")
    assert policies.of_vhost("/", operator=True) == []
    with pytest.raises(ValidationFailed):
        parameters.clear("policy", "/", "hidden")
    with pytest.raises(NotThere):
        parameters.get("policy", "/", "hidden")


def test_what_is_not_there_cannot_be_cleared(parameters: Parameters) -> None:
    for component in ("vhost-limits", "operator_policy", "bogus"):
        with pytest.raises(NotThere, match="Parameter does not exist"):
            parameters.clear(component, "/", "n")


def test_parameters_are_listed_by_component_and_vhost(parameters: Parameters) -> None:
    for vhost in ("other", "/"):
        parameters.set("vhost-limits", vhost, "limits", {})
        parameters.set("operator_policy", vhost, "p", OPERATOR)
    listed = [parameter[:3] for parameter in parameters.all()]
    assert listed == [
        ("operator_policy", "/", "p"),
        ("operator_policy", "other", "p"),
        ("vhost-limits", "/", "limits"),
        ("vhost-limits", "other", "limits"),
    ]
    assert len(parameters.all("vhost-limits")) == 2
    assert [p[:3] for p in parameters.all("vhost-limits", "/")] == [("vhost-limits", "/", "limits")]
    assert parameters.all("bogus") == []


def test_deleting_a_vhost_can_take_all_of_it_along(
    parameters: Parameters, policies: Policies, store: VolatileMetadataStore
) -> None:
    for vhost in ("/", "other"):
        parameters.set("vhost-limits", vhost, "limits", {})
        parameters.set("operator_policy", vhost, "p", OPERATOR)
        policies.set(vhost, "p", "", {"max-length": 1})
    store.transact(parameters.writes_to_forget_vhost("/"))
    assert [parameter.vhost for parameter in parameters.all()] == ["other", "other"]
    assert [policy.vhost for policy in policies.all()] == ["other"]


class TestGlobalParameters:
    def test_any_json_goes(self, store: VolatileMetadataStore) -> None:
        parameters = GlobalParameters(store)
        values = {"a": 1, "b": [None, {"x": 1.5}], "c": "text"}
        for name, value in values.items():
            parameters.set(name, value)
        assert dict(parameters.all()) == values
        parameters.clear("a")
        with pytest.raises(NotThere, match="Parameter does not exist"):
            parameters.get("a")
        with pytest.raises(NotThere):
            parameters.clear("a")

    def test_integers_beyond_64_bits_are_refused(self, store: VolatileMetadataStore) -> None:
        with pytest.raises(ValidationFailed, match="64 bits"):
            GlobalParameters(store).set("a", {"deep": [2**63]})

    def test_the_identity_of_the_cluster_is_made_up_once(
        self, store: VolatileMetadataStore
    ) -> None:
        parameters = GlobalParameters(store)
        identity = parameters.cluster_id(lambda count: b"\xff" * count)
        assert re.fullmatch(r"rabbitmq-cluster-id-[A-Za-z0-9_-]{22}", identity)
        assert parameters.cluster_id(lambda count: b"\x00" * count) == identity
        assert parameters.get("internal_cluster_id") == identity
