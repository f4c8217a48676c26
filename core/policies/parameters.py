"""Runtime parameters: values of a component in a virtual host, and global ones of the cluster.

Answerable for policies_and_parameters.md section 2. A component has to be known, and says which
values it takes: those that other houses carry out register themselves (`Parameters.register`).
Policies and operator policies are parameters to RabbitMQ; here they have their own records, and
these calls refuse the ones and pass the others on, as RabbitMQ's do.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from warren.core.access.access_control import User
from warren.core.access.limits import COMPONENT as VHOST_LIMITS
from warren.core.access.limits import NAME as VHOST_LIMITS_NAME
from warren.core.access.limits import VhostLimits
from warren.core.definitions.records import GlobalParameterRecord, ParameterRecord
from warren.core.definitions.validation import (
    NotThere,
    ValidationFailed,
    expect_vhost,
    is_storable,
    term,
)
from warren.core.field import NESTED_TOO_DEEP, nested_too_deep
from warren.core.policies.policy import Policies
from warren.core.policies.policy_set import Policy
from warren.core.ports import Commit, Conflict, Key, MetadataStore, Precondition, Write

CLUSTER_NAME = "cluster_name"
INTERNAL_CLUSTER_ID = "internal_cluster_id"
MISSING = "Parameter does not exist"


class Parameter(NamedTuple):
    """A parameter as it is listed."""

    component: str
    vhost: str
    name: str
    value: Any


Check: TypeAlias = Callable[[str, str, Any, User | None], None]
"""Raises `ValidationFailed` unless a parameter of this virtual host and name may have this value,
set by this user; None is an operator, who may do everything."""


class Parameters:
    """The runtime parameters of all virtual hosts, kept in the metadata store.

    `node` carries out what parameters of registered components ask for, if it is the first to set
    one.
    """

    def __init__(
        self, store: MetadataStore, limits: VhostLimits, policies: Policies, node: str
    ) -> None:
        self._store = store
        self._limits = limits
        self._policies = policies
        self._node = node
        self._components: dict[str, Check] = {}

    def register(self, component: str, check: Check) -> None:
        """Take parameters of this component from now on."""
        self._components[component] = check

    def set(
        self, component: str, vhost: str, name: str, value: Any, user: User | None = None
    ) -> Commit:
        """Raises `ValidationFailed` or `NoSuchVhost`.

        `user` is who sets it, None an operator. The commit is refused where another node changed
        the parameter meanwhile, and may be tried again.
        """
        if component == "operator_policy":
            return self._set_operator_policy(vhost, name, value)
        check = self._components.get(component)
        if check is not None:
            expect_vhost(self._store, vhost)
            _check_storable(value)
            check(vhost, name, value, user)
            return self._set_registered(component, vhost, name, value, user)
        _check_component(component)
        if name != VHOST_LIMITS_NAME:
            raise ValidationFailed(f"name of {component} should be {VHOST_LIMITS_NAME}, not {name}")
        return self._limits.replace(vhost, value)

    def _set_registered(
        self, component: str, vhost: str, name: str, value: Any, user: User | None
    ) -> Commit:
        key = _key(component, vhost, name)
        stored = self._store.get(key)
        node, version = self._node, 0
        if stored is not None:
            assert isinstance(stored.record, ParameterRecord)
            # Another node may have it in hand, and goes on with it.
            node, version = stored.record.node or node, stored.version
        record = ParameterRecord(value, user.name if user is not None else "", node)
        return self._store.transact([Write(key, record)], [Precondition(key, version)])

    def clear(self, component: str, vhost: str, name: str) -> Commit:
        """Raises `ValidationFailed`, or `NotThere` when there is no such parameter."""
        if component == "operator_policy":
            return self._policies.clear(vhost, name, operator=True)
        if component == "policy":
            raise ValidationFailed("policies may not be cleared using this method")
        key = _key(component, vhost, name)
        if self._store.get(key) is None:
            raise NotThere(MISSING)
        return self._store.transact([Write(key, None)])

    def get(self, component: str, vhost: str, name: str) -> Any:
        """The value; raises `NotThere`."""
        if component == "operator_policy":
            return _as_parameter(self._policies.get(vhost, name, operator=True)).value
        stored = self._store.get(_key(component, vhost, name))
        if stored is None:
            raise NotThere(MISSING)
        assert isinstance(stored.record, ParameterRecord)
        return stored.record.value

    def all(self, component: str | None = None, vhost: str | None = None) -> list[Parameter]:
        """The parameters of the component and of the virtual host; policies are not among them."""
        found = [*self._stored(), *map(_as_parameter, self._policies.all(operator=True))]
        return sorted(
            (
                parameter
                for parameter in found
                if component in (None, parameter.component) and vhost in (None, parameter.vhost)
            ),
            key=lambda parameter: parameter[:3],
        )

    def writes_to_forget_vhost(self, vhost: str) -> list[Write]:
        """The writes that delete the parameters and policies of a virtual host together with it."""
        keys = [_key(*parameter[:3]) for parameter in self._stored() if parameter.vhost == vhost]
        for kind in ("policy", "operator_policy"):
            keys += [stored.key for stored in self._store.records((kind, vhost))]
        return [Write(key, None) for key in keys]

    def _stored(self) -> Iterator[Parameter]:
        for key, record, _ in self._store.records(("parameter",)):
            assert isinstance(record, ParameterRecord)
            _, component, vhost, name = key
            yield Parameter(component, vhost, name, record.value)

    def _set_operator_policy(self, vhost: str, name: str, value: Any) -> Commit:
        if not isinstance(value, dict):
            raise ValidationFailed(f"{name} not a list {term(value)}")
        known = {"pattern", "definition", "priority", "apply-to"}
        for key in ("pattern", "definition"):
            if key not in value:
                raise ValidationFailed(f'Key "{key}" not found in {name}')
        unknown = {key: item for key, item in value.items() if key not in known}
        if unknown:
            raise ValidationFailed(f"Unrecognised terms {term(unknown)} in {name}")
        return self._policies.set(
            vhost,
            name,
            value["pattern"],
            value["definition"],
            value.get("priority", 0),
            value.get("apply-to", "all"),
            operator=True,
        )


class GlobalParameters:
    """Values that belong to the cluster and to no virtual host; any JSON goes."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def set(self, name: str, value: Any) -> Commit:
        """Raises `ValidationFailed` for what the store cannot hold."""
        _check_storable(value)
        record = GlobalParameterRecord(value)
        return self._store.transact([Write(("global_parameter", name), record)])

    def clear(self, name: str) -> Commit:
        """Raises `NotThere`."""
        self.get(name)
        return self._store.transact([Write(("global_parameter", name), None)])

    def get(self, name: str) -> Any:
        """Raises `NotThere`."""
        stored = self._store.get(("global_parameter", name))
        if stored is None:
            raise NotThere(MISSING)
        assert isinstance(stored.record, GlobalParameterRecord)
        return stored.record.value

    def all(self) -> Iterator[tuple[str, Any]]:
        """Names and values by name."""
        for key, record, _ in self._store.records(("global_parameter",)):
            assert isinstance(record, GlobalParameterRecord)
            yield key[1], record.value

    def name_cluster(self, name: str) -> None:
        """Give the cluster a name unless it has one: all nodes are to say the same."""
        key: Key = ("global_parameter", CLUSTER_NAME)
        if self._store.get(key) is None:
            # Another node may be faster.
            with suppress(Conflict):
                self._store.transact(
                    [Write(key, GlobalParameterRecord(name))], [Precondition(key, 0)]
                )

    def cluster_id(self, random_bytes: Callable[[int], bytes]) -> str:
        """The identity of the cluster, made up when it has none yet."""
        try:
            identity: str = self.get(INTERNAL_CLUSTER_ID)
        except NotThere:
            token = urlsafe_b64encode(random_bytes(16)).decode("ascii").rstrip("=")
            identity = f"rabbitmq-cluster-id-{token}"
            self.set(INTERNAL_CLUSTER_ID, identity)
        return identity


def _key(component: str, vhost: str, name: str) -> Key:
    return ("parameter", component, vhost, name)


def _check_component(component: str) -> None:
    if component == "policy":
        raise ValidationFailed("policies may not be set using this method")
    if component != VHOST_LIMITS:
        raise ValidationFailed(f"component {component} not found")


def _check_storable(value: Any) -> None:
    if nested_too_deep(value):
        raise ValidationFailed(NESTED_TOO_DEEP)
    if not is_storable(value):
        raise ValidationFailed("integers of more than 64 bits cannot be stored")


def _as_parameter(policy: Policy) -> Parameter:
    value = {
        "apply-to": policy.apply_to,
        "definition": dict(policy.definition),
        "pattern": policy.pattern,
        "priority": policy.priority,
    }
    return Parameter("operator_policy", policy.vhost, policy.name, value)
