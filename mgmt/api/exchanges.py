"""Exchanges: list, one, declare, delete (management_api.md sections 2 and 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from warren.amqp.names import checked_new_name, clean_name
from warren.core.errors import CommandInvalid
from warren.core.exchanges.exchange import Exchange
from warren.core.exchanges.routing import DEFAULT_EXCHANGE
from warren.core.field import from_json, to_json
from warren.core.ports import Commit
from warren.core.vhosts.equivalence import check_exchange_equivalent
from warren.core.vhosts.topology_access import check_exchange
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt.api import stats_json
from warren.mgmt.api.changes import audit, durable
from warren.mgmt.http.endpoint import CREATED, NO_CONTENT, Endpoint, HttpReply
from warren.mgmt.http.errors import BadRequest, NotAuthorised, ObjectNotFound
from warren.mgmt.http.listing import Listing, Row, answer, answer_row
from warren.mgmt.http.request import ApiRequest, boolean, check_length, text
from warren.mgmt.http.slices import chunks
from warren.mgmt.peers import added
from warren.mgmt.statistics import figures
from warren.mgmt.waiting import taken, through

StatsElsewhere: TypeAlias = dict[tuple[str, str], dict[str, Any]]
"""Message stats by virtual host and exchange."""

OF_NODES = "/nodes-exchanges"
"""The path at which other nodes, and only they, ask for message stats."""

ONE = "/exchanges/{vhost}/{exchange}"

MESSAGES_DELAYED = "messages_delayed"


class ListedExchange(NamedTuple):
    vhost: VirtualHost
    exchange: Exchange


class ExchangeRows:
    """Makes the JSON of exchanges for one request."""

    def __init__(
        self,
        request: ApiRequest,
        elsewhere: StatsElsewhere | None = None,
        *,
        with_samples: bool = True,
    ) -> None:
        self._node = request.node
        self._elsewhere = elsewhere or {}
        self._track = request.managed.statistics.exchanges
        self._times = stats_json.times(request, "msg_rates") if with_samples else []
        self._offset_s = stats_json.wall_offset_s(request)

    def row(self, listed: ListedExchange) -> Row:
        vhost, exchange = listed
        current = figures.exchange_figures(exchange)
        rates = self._track.rates(exchange, self._node.clock.now(), current)
        samples = self._track.samples(exchange, self._times) if self._times else ()
        stats = added(
            stats_json.exchange_stats(current, rates, samples, self._offset_s),
            self._elsewhere.get((vhost.name, exchange.name), {}),
        )
        policy = self._node.policies.applied(vhost.name, exchange.name, "exchange").policy
        return {
            "name": exchange.name,
            "vhost": vhost.name,
            "type": exchange.type,
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "arguments": to_json(exchange.arguments),
            "user_who_performed_action": exchange.declared_by,
            **({"policy": policy} if policy is not None else {}),
            **_delayed(vhost, exchange.name, stats),
            **({"message_stats": stats} if stats else {}),
        }

    def full_row(self, listed: ListedExchange) -> Row:
        return {**self.row(listed), "incoming": [], "outgoing": []}


def _delayed(vhost: VirtualHost, name: str, stats: dict[str, Any]) -> dict[str, int]:
    """How many messages wait in a delayed exchange; empty if that is not known.

    The node that leads its delay queue tells the others, among the message stats.
    """
    elsewhere = stats.pop(MESSAGES_DELAYED, None)
    queue = vhost.delay_queue(name)
    if queue is None:
        return {}
    count = len(queue) if queue.is_here else elsewhere
    return {} if count is None else {MESSAGES_DELAYED: count}


async def _listing(request: ApiRequest) -> Listing[ListedExchange]:
    elsewhere = await _stats_elsewhere(request)
    return Listing(
        row=ExchangeRows(request, elsewhere).row,
        plain=ExchangeRows(request, elsewhere, with_samples=False).row,
        name=lambda listed: listed.exchange.name,
    )


async def _stats_elsewhere(request: ApiRequest) -> StatsElsewhere:
    """Message stats of exchanges on other nodes: each counts what its own clients publish."""
    found: StatsElsewhere = {}
    peers = request.peers
    if peers is not None:
        for rows in (await peers.ask_all(request, OF_NODES)).values():
            for vhost, name, stats in rows:
                found[vhost, name] = added(found.get((vhost, name), {}), stats)
    return found


async def stats_for_node(request: ApiRequest) -> Any:
    """The message stats of all exchanges through which messages have passed on this node."""
    if not request.passed:
        raise ObjectNotFound()
    statistics, now = request.managed.statistics.exchanges, request.node.clock.now()
    answers = []
    async for chunk in chunks(list(_exchanges_of(list(request.node.vhosts.values())))):
        for vhost, exchange in chunk:
            current = figures.exchange_figures(exchange)
            delayed = _delayed(vhost, exchange.name, {})
            if any(current) or delayed:
                rates = statistics.rates(exchange, now, current)
                stats = stats_json.exchange_stats(current, rates)
                answers.append((vhost.name, exchange.name, {**stats, **delayed}))
    return answers


def _exchanges_of(vhosts: list[VirtualHost]) -> Iterator[ListedExchange]:
    for vhost in vhosts:
        for name in sorted(vhost.exchanges):
            yield ListedExchange(vhost, vhost.exchanges[name])


async def list_exchanges(request: ApiRequest) -> Any:
    return await answer(request, _exchanges_of(request.visible_vhosts()), await _listing(request))


async def list_exchanges_of_vhost(request: ApiRequest) -> Any:
    return await answer(request, _exchanges_of([request.vhost()]), await _listing(request))


def exchange_of(request: ApiRequest) -> ListedExchange:
    """The exchange in the path. Raises `ObjectNotFound`."""
    vhost = request.vhost()
    exchange = vhost.exchanges.get(request.exchange_name("exchange"))
    if exchange is None:
        raise ObjectNotFound()
    return ListedExchange(vhost, exchange)


async def get_exchange(request: ApiRequest) -> Any:
    listed = exchange_of(request)
    row = ExchangeRows(request).full_row(listed)
    peers = request.peers
    if peers is not None:
        parts = dict(request.http.match_info)
        for other in (await peers.ask_all(request, ONE, parts)).values():
            stats = added(row.get("message_stats"), other.get("message_stats"))
            row.update({"message_stats": stats} if stats else {})
            if MESSAGES_DELAYED in other:
                row[MESSAGES_DELAYED] = other[MESSAGES_DELAYED]
    return answer_row(request, row)


async def put_exchange(request: ApiRequest) -> HttpReply:
    vhost, name = request.vhost(), clean_name(request.exchange_name("exchange"))
    body = await request.body()
    wanted = {
        "durable": boolean(body.get("durable", False)),
        "auto_delete": boolean(body.get("auto_delete", False)),
        "internal": boolean(body.get("internal", False)),
    }
    arguments = body.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise BadRequest("arguments should be an object")
    kind, table = text(body, "type", "direct"), from_json(arguments)
    check_length(name, "exchange")
    if name == DEFAULT_EXCHANGE:
        raise NotAuthorised("Access refused.")
    try:
        vhost.check_exchange_type(kind)
    except CommandInvalid as error:
        raise BadRequest(error.text) from error
    request.check(vhost.name, "exchange", name, "configure")

    def declare() -> Commit | None:
        existing = vhost.exchanges.get(name)
        if existing is not None:
            check_exchange_equivalent(existing, vhost.name, kind, arguments=table, **wanted)
            return None
        checked_new_name("exchange", name)
        check_exchange(request.asking(vhost), name, table)
        try:
            return vhost.declare_exchange(
                name, kind, arguments=table, declared_by=request.caller.user.name, **wanted
            )
        except CommandInvalid as error:
            # The error is about the type by whose rules a delayed exchange is to route.
            raise BadRequest(error.text) from error

    return CREATED if await taken(declare) else NO_CONTENT


async def delete_exchange(request: ApiRequest) -> None:
    vhost, exchange = exchange_of(request)
    name = exchange.name
    request.check(vhost.name, "exchange", name, "configure")
    if name == DEFAULT_EXCHANGE:
        raise NotAuthorised("Access refused.")
    checked_new_name("exchange", name)
    if_unused = request.query_flag("if-unused")
    await through(vhost.end_exchange(name, if_unused=if_unused))
    await durable(request)
    audit(request, "exchange_deleted", vhost=vhost.name, exchange=name)


FOR_NODES = [Endpoint(OF_NODES, {"GET": stats_for_node}, summary="Figures for another node")]

ENDPOINTS = [
    Endpoint("/exchanges", {"GET": list_exchanges}, summary="All exchanges"),
    Endpoint(
        "/exchanges/{vhost}", {"GET": list_exchanges_of_vhost}, summary="Exchanges of a vhost"
    ),
    Endpoint(
        ONE,
        {"GET": get_exchange, "PUT": put_exchange, "DELETE": delete_exchange},
        summary="One exchange",
    ),
]
