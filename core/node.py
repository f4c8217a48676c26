"""One node: everything its connections share, and what happens to all of them at once.

Answerable for making and ending virtual hosts, for limits on connections and channels, and for
telling virtual hosts and connections of changed definitions (policies, permissions, users).
`warren/node.py` builds it, and its clock, store and monitors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

from warren.core.access.access_control import AccessControl, LoginRefused, User
from warren.core.access.limits import COMPONENT as LIMITS_COMPONENT
from warren.core.access.limits import VhostLimits, check_user_channel, check_user_connection
from warren.core.access.login_throttle import LoginThrottle, LoginThrottled
from warren.core.access.quotas import Quotas
from warren.core.backing.backing_queue import BackingQueue, BackingSpec
from warren.core.definitions.records import GlobalParameterRecord, UserRecord, VirtualHostRecord
from warren.core.definitions.validation import ValidationFailed
from warren.core.errors import NotAllowed
from warren.core.field import Table, longstr
from warren.core.log_line import log_event
from warren.core.messages.firehose import Firehose
from warren.core.messages.message import Message
from warren.core.policies.parameters import CLUSTER_NAME, GlobalParameters, Parameters
from warren.core.policies.policy import Policies
from warren.core.ports import Clock, Commit, ContentCodec, Key, MetadataStore, Write
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.local_queues import LocalQueues
from warren.core.queues.placement import OneNode, Placement
from warren.core.queues.queue import Queue
from warren.core.resources.alarms import Alarms
from warren.core.resources.growth import Growth
from warren.core.scheduling.turns import Turns
from warren.core.scheduling.waiting import taken
from warren.core.tracing.life_trace import LifeTrace
from warren.core.tracing.trace_rules import COMPONENT as TRACE
from warren.core.tracing.trace_rules import RULES_MAX, parse
from warren.core.tracing.trace_rules import check as check_rule
from warren.core.tracing.trace_store import Traced
from warren.core.tracing.tracer import Tracer
from warren.core.vhosts.node_counts import AMQP, LoginCounts, NodeCounts
from warren.core.vhosts.reply_to import Replies
from warren.core.vhosts.shared_parts import SharedParts
from warren.core.vhosts.vhost import VirtualHost

log = logging.getLogger("warren.connection")
vhost_log = logging.getLogger("warren.vhost")


class Client(Protocol):
    """A connection of a user to a virtual host, as the node sees it."""

    user: User | None
    vhost: VirtualHost | None

    @property
    def channel_count(self) -> int: ...

    def holdings(self) -> Iterable[ClientChannel]:
        """Its channels."""
        ...

    def force_close(self, reason: str) -> None: ...

    def alarms_changed(self) -> None: ...

    def growth_changed(self) -> None: ...


class ClientChannel(Protocol):
    """A channel, as far as the node asks for its messages."""

    def unsettled(self) -> Sequence[Message]:
        """The messages that it got, and of which their queues have heard no verdict yet."""
        ...


class HeldAfar(NamedTuple):
    """The messages of a queue that clients of another node hold, by the number of the delivery. At
    that node this number is the position of the message."""

    node: str
    messages: Mapping[int, Message]


class Node:
    """The state of one running node."""

    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        codec: ContentCodec,
        metadata: MetadataStore,
        access: AccessControl,
        alarms: Alarms,
        random: Random,
        new_token: Callable[[], str],
        new_backing_queue: Callable[[BackingSpec], BackingQueue],
        server_properties: Table,
        placement: Placement | None = None,
        cluster_name: str | None = None,
    ) -> None:
        self.name = name
        self._first_cluster_name = cluster_name or name
        self.clock = clock
        self.turns = Turns(clock)
        self.codec = codec
        self.metadata = metadata
        self.access = access
        self.alarms = alarms
        self.replies = Replies()
        self.new_token = new_token
        self.policies = Policies(metadata)
        self.vhost_limits = VhostLimits(metadata)
        self.parameters = Parameters(metadata, self.vhost_limits, self.policies, name)
        self.global_parameters = GlobalParameters(metadata)
        self.tracer = Tracer(name, clock, self.turns, codec)
        self.vhosts: dict[str, VirtualHost] = {}
        self.local_queues = LocalQueues()
        self._placement = placement or OneNode()
        self.clients: dict[Client, None] = {}
        # Channels that have ended and have not given back all their messages yet.
        self.giving_back: dict[ClientChannel, None] = {}
        # Callbacks that return the messages of a queue that clients of other nodes hold.
        self.other_clients: list[Callable[[LocalQueue], Iterable[HeldAfar]]] = []
        self.counts = NodeCounts()
        self._throttle = LoginThrottle()
        self.started_at, self._began = clock.wall_time(), clock.now()
        # Set by tests of clients: no confirm is sent.
        self.holds_confirms = False
        self._clients_numbered = 0
        # The frame of connection.start, by the login mechanisms that it offers.
        self.greetings: dict[tuple[str, ...], bytes] = {}
        self._random = random
        self._new_backing_queue = new_backing_queue
        self._server_properties = server_properties
        self.quotas = Quotas(clock, self._queues_of, lambda: self.vhosts)
        self._keep_user_limits()
        for stored in metadata.records(("vhost",)):
            self._start_vhost(stored.key[1])
        self._stop_watching = metadata.watch(("vhost",), self._vhost_changed)
        metadata.watch(("global_parameter",), lambda key, record: self.greetings.clear())
        self._follow_access()
        self.policies.watch(self._policies_changed)
        alarms.subscribe(self._alarms_changed)
        self.growth = Growth(alarms, clock)
        self.growth.watch(self._growth_changed)
        metadata.watch(("parameter", LIMITS_COMPONENT), self._vhost_limits_changed)
        self._follow_trace_rules()

    def _follow_access(self) -> None:
        self.metadata.watch(("user",), self._user_changed)
        for kind in ("permission", "topic_permission"):
            self.metadata.watch((kind,), self._permission_changed)

    def _keep_user_limits(self) -> None:
        for name, user in self.access.users():
            self.quotas.set_user_limits(name, user.limits)

    # Virtual hosts

    def add_vhost(self, name: str, record: VirtualHostRecord | None = None) -> Commit:
        """Make a virtual host, or change its record."""
        return self.metadata.transact([Write(("vhost", name), record or VirtualHostRecord())])

    async def end_vhost(self, name: str) -> None:
        """Delete a virtual host, in turns if it is large: its queues and bindings go first."""
        vhost = self.vhosts.get(name)
        if vhost is not None:
            await vhost.empty()
        await taken(lambda: self.delete_vhost(name))

    def delete_vhost(self, name: str) -> Commit:
        """Delete a virtual host, all that is in it, and all definitions that belong to it."""
        writes = [Write(("vhost", name), None)]
        for kind in ("exchange", "queue", "binding"):
            writes += [Write(stored.key, None) for stored in self.metadata.records((kind, name))]
        writes += self.access.writes_to_forget_vhost(name)
        writes += self.parameters.writes_to_forget_vhost(name)
        return self.metadata.transact(writes)

    @property
    def all_buried(self) -> bool:
        """Whether no dead letter is on its way to a queue."""
        return all(vhost.burials.idle for vhost in self.vhosts.values())

    def hold_burials(self) -> None:
        """Publish no more dead letters: the node is about to stop, and publishes the rest after its
        next start."""
        for vhost in self.vhosts.values():
            vhost.burials.hold()

    def stop_following(self) -> None:
        """Ignore changes of definitions: the node is about to stop, and its next start sees them.

        Otherwise it could be given the lead of queues when its storage is closed already.
        """
        self._stop_watching()
        for vhost in self.vhosts.values():
            vhost.stop_following()

    def stop(self) -> None:
        """Stop all virtual hosts; the node has no clients any more."""
        for vhost in self.vhosts.values():
            vhost.stop()

    def trace(self, vhost: str, on: bool) -> None:
        """Start or stop the firehose of a virtual host."""
        traced = self.vhosts[vhost]
        traced.observation.trace_with(Firehose(traced, self.name, self.codec) if on else None)

    # Lives of messages

    def _follow_trace_rules(self) -> None:
        self.parameters.register(TRACE, self._check_trace_rule)
        self.metadata.watch(("parameter", TRACE), self._trace_rules_changed)

    def _check_trace_rule(self, vhost: str, name: str, value: Any, _user: User | None) -> None:
        """Raises `ValidationFailed`."""
        check_rule(name, value)
        others = [rule for rule in self.parameters.all(TRACE, vhost) if rule.name != name]
        if len(others) >= RULES_MAX:
            raise ValidationFailed(f"vhost '{vhost}' has {RULES_MAX} rules already, the most")

    def _trace_rules_changed(self, key: Key, _record: object | None) -> None:
        vhost = self.vhosts.get(key[2])
        if vhost is not None:
            self._record_lives(vhost)

    def _record_lives(self, vhost: VirtualHost) -> None:
        """Record the lives of messages that the virtual host's present rules select."""
        rules = [parse(rule.name, rule.value) for rule in self.parameters.all(TRACE, vhost.name)]
        life = vhost.observation.life
        watched = life.watched if life is not None else ()
        life = LifeTrace(vhost.name, rules, self.tracer, watched) if rules else None
        vhost.observation.record_lives(life)

    def resume_traces(self, traced: Iterable[Traced]) -> None:
        """Follow on what was followed before a restart; `traced` begins with the oldest message."""
        watched: dict[str, dict[str, None]] = {}
        for one in traced:
            if one.id:
                self.tracer.follow_too(one.vhost, one.id)
            names = watched.setdefault(one.vhost, {})
            names[one.queue] = None
            names.update(dict.fromkeys(one.queues))
        for name, queues in watched.items():
            vhost = self.vhosts.get(name)
            if vhost is not None and vhost.observation.life is not None:
                vhost.observation.life.watched |= queues.keys()
                vhost.observation.record_lives(vhost.observation.life)

    def _start_vhost(self, name: str) -> None:
        parts = SharedParts(
            clock=self.clock,
            turns=self.turns,
            codec=self.codec,
            store=self.metadata,
            policies=self.policies,
            limits=self.vhost_limits,
            replies=self.replies,
            counts=self.counts,
            random=self._random,
            new_backing_queue=self._new_backing_queue,
            placement=self._placement,
            local_queues=self.local_queues,
        )
        vhost = VirtualHost(name, parts)
        vhost.recover()
        self.vhosts[name] = vhost
        self._record_lives(vhost)
        self._set_quotas(vhost)

    def _vhost_changed(self, key: Key, record: object | None) -> None:
        name = key[1]
        if record is not None:
            if name not in self.vhosts:
                self._start_vhost(name)
                log_event(vhost_log, logging.INFO, "vhost_created", vhost=name)
            return
        vhost = self.vhosts.pop(name, None)
        if vhost is None:
            return
        self.quotas.forget_vhost(name)
        log_event(vhost_log, logging.INFO, "vhost_deleted", vhost=name)
        vhost.end()
        reason = f"vhost '{name}' is deleted"
        # Cancels of consumers are written first; they are scheduled, so the closes are too.
        self.clock.call_soon(lambda: self._close_clients(lambda c: c.vhost is vhost, reason))

    # Clients

    @property
    def uptime_s(self) -> float:
        """For how long the node runs, whatever the clock on the wall was set to meanwhile."""
        return self.clock.now() - self._began

    def number_client(self) -> str:
        """The name of a new connection for operators: a process id in RabbitMQ's form."""
        self._clients_numbered += 1
        return f"<{self.name}.{int(self.started_at)}.{self._clients_numbered}.0>"

    def log_in(
        self,
        user: str,
        password: str | None,
        address: str,
        loopback: bool,
        protocol: str = AMQP,
    ) -> User:
        """Return the user with this password; None stands for a login by certificate.

        Raises `LoginRefused`, and `LoginThrottled` if the address has failed too often.
        """
        logins = self.counts.logins.setdefault(protocol, LoginCounts())
        try:
            if password is None:
                admitted = self.access.authenticate_by_certificate(user, loopback)
            else:
                admitted = self._check_password(user, password, address, loopback)
        except LoginRefused as refusal:
            logins.failed += 1
            logins.throttled += isinstance(refusal, LoginThrottled)
            raise
        logins.succeeded += 1
        return admitted

    def is_one_of(self, processes: int) -> None:
        """Note that the broker has `processes` processes, of which this node is one."""
        self._throttle = LoginThrottle(processes)

    def _check_password(self, user: str, password: str, address: str, loopback: bool) -> User:
        now = self.clock.now()
        if self._throttle.waits(address, user, now):
            raise LoginThrottled(user, self._throttle.forgiven_s)
        try:
            return self.access.authenticate(user, password, loopback)
        except LoginRefused as refusal:
            if self._throttle.failed(address, user, self.access.has_user(user), now):
                log_event(log, logging.WARNING, "logins_throttled", address=address, last_user=user)
            if self._throttle.guesses(address, now):
                # The same answer for a name that does not exist and for one that has to wait.
                raise LoginThrottled(user, self._throttle.forgiven_s) from refusal
            raise

    def login_refused(self, peer: str, refusal: LoginRefused) -> None:
        """Log that a login failed, over AMQP or HTTP; the peer is not told the reason."""
        if isinstance(refusal, LoginThrottled):
            # There can be thousands a second; `logins_throttled` has been logged.
            return
        log_event(
            log,
            logging.WARNING,
            "login_refused",
            peer=peer,
            user=refusal.user,
            reason=refusal.reason,
        )

    def open_vhost(self, client: Client, user: User, name: str) -> VirtualHost:
        """Let a client into a virtual host; the checks are in RabbitMQ's order.

        Raises `NotAllowed`.
        """
        vhost = self.vhosts.get(name)
        if vhost is None:
            raise NotAllowed(f"vhost {name} not found")
        if self.vhost_limits.get(name):
            in_vhost = sum(other.vhost is vhost for other in self.clients)
            in_vhost += self.vhost_limits.elsewhere.in_vhost(name).connections
            self.vhost_limits.check_connection(name, user.name, in_vhost)
        limits = self.access.user_limits(user.name)
        if limits:
            elsewhere = self.vhost_limits.elsewhere.of_user(user.name).connections
            check_user_connection(limits, user.name, len(self._clients_of(user)) + elsewhere)
        if not self.access.vhost_allowed(user, name):
            raise NotAllowed(f"access to vhost '{name}' refused for user '{user.name}'")
        self.clients[client] = None
        self.vhost_limits.elsewhere.opened(client, name, user.name)
        self.counts.connections_opened += 1
        return vhost

    def check_channel_limit(self, user: User) -> None:
        """Raise `NotAllowed` if the user has as many channels as allowed."""
        limits = self.access.user_limits(user.name)
        if limits:
            opened = sum(client.channel_count for client in self._clients_of(user))
            opened += self.vhost_limits.elsewhere.of_user(user.name).channels
            check_user_channel(limits, user.name, opened)

    def channel_opened(self, client: Client) -> None:
        self.counts.channels_opened += 1
        self.vhost_limits.elsewhere.channels(client, 1)

    def channel_closed(self, client: Client) -> None:
        """Count a channel that has ended, and has given its unacknowledged messages back."""
        self.counts.channels_closed += 1
        self.vhost_limits.elsewhere.channels(client, -1)

    def unacked_of(self, queue: LocalQueue) -> list[Message]:
        """The pending messages of a queue: those that clients hold, at any node; dead ones whose
        dead letters are not safe yet; returned ones that wait; those that operators took out."""
        found = self.held_by_queue(queue)
        holdings = [channel for client in self.clients for channel in client.holdings()]
        for channel in (*holdings, *self.giving_back):
            found += [message for message in channel.unsettled() if message.holder.queue is queue]
        for held in self.held_afar(queue):
            found += held.messages.values()
        return found

    def held_by_queue(self, queue: LocalQueue) -> list[Message]:
        """The pending messages of a queue that no client holds."""
        vhost = self.vhosts.get(queue.vhost_name)
        found = [*queue.waiting_messages()]
        # `in_hand` makes an object if the queue has none, so it is asked only if it has messages.
        if queue.set_aside[0] > len(found):
            found += queue.in_hand
        return found + (list(vhost.burials.of_queue(queue)) if vhost is not None else [])

    def held_afar(self, queue: LocalQueue) -> Iterable[HeldAfar]:
        """The messages of the queue that clients of other nodes hold."""
        return [held for others in self.other_clients for held in others(queue)]

    def connection_ended(self, client: Client) -> None:
        if client in self.clients:
            del self.clients[client]
            self.vhost_limits.elsewhere.closed(client)
            self.counts.connections_closed += 1

    def heartbeat_missed(self, peer: str, heartbeat_s: int) -> None:
        log_event(log, logging.WARNING, "heartbeats_missed", peer=peer, heartbeat_s=heartbeat_s)

    def close_all(self, reason: str) -> None:
        """Close every connection, for an operator."""
        self._close_clients(lambda client: True, reason)

    def server_properties(self) -> Table:
        """The server properties of connection.start, without the capabilities."""
        return {**self._server_properties, "cluster_name": longstr(self.cluster_name)}

    @property
    def cluster_name(self) -> str:
        """The name that an operator gave the cluster; else the configuration's, or the node's."""
        named = self.metadata.get(("global_parameter", CLUSTER_NAME))
        if named is not None and isinstance(named.record, GlobalParameterRecord):
            return str(named.record.value)
        return self._first_cluster_name

    def _clients_of(self, user: User) -> list[Client]:
        return [
            client
            for client in self.clients
            if client.user is not None and client.user.name == user.name
        ]

    def _close_clients(self, which: Callable[[Client], bool], reason: str) -> None:
        for client in [client for client in self.clients if which(client)]:
            client.force_close(reason)

    # Changes of definitions

    def _user_changed(self, key: Key, record: object | None) -> None:
        if record is None:
            name = key[1]
            self._close_clients(
                lambda client: client.user is not None and client.user.name == name,
                f"user '{name}' is deleted",
            )
        before = bool(self.quotas.of_users)
        limits = record.limits if isinstance(record, UserRecord) else {}
        self.quotas.set_user_limits(key[1], limits)
        if bool(self.quotas.of_users) is not before:
            for vhost in self.vhosts.values():
                self._set_quotas(vhost)

    def _vhost_limits_changed(self, key: Key, _record: object | None) -> None:
        vhost = self.vhosts.get(key[2])
        if vhost is not None:
            self._set_quotas(vhost)

    def _set_quotas(self, vhost: VirtualHost) -> None:
        vhost.quotas = self.quotas.of_vhost(vhost.name, self.vhost_limits.get(vhost.name))

    def _queues_of(self, vhost: str) -> Iterable[Queue]:
        found = self.vhosts.get(vhost)
        return found.queues.values() if found is not None else ()

    def _permission_changed(self, key: Key, _record: object | None) -> None:
        vhost = self.vhosts.get(key[2])
        if vhost is not None:
            vhost.topology.generation += 1

    def _policies_changed(self, vhost: str) -> None:
        if vhost in self.vhosts:
            self.vhosts[vhost].apply_policies()

    def _alarms_changed(self) -> None:
        for client in list(self.clients):
            client.alarms_changed()

    def _growth_changed(self) -> None:
        for client in list(self.clients):
            client.growth_changed()


def default_server_properties(version: str, platform: str) -> Table:
    """The server properties of a node. Product and version are RabbitMQ's, because clients choose
    features by them."""
    return {
        "product": longstr("RabbitMQ"),
        "version": longstr("3.10.8"),
        "platform": longstr(f"Warren {version} ({platform})"),
        "copyright": longstr("Copyright (c) 2026 The Warren authors"),
        "information": longstr("Licensed under the MIT licence."),
    }
