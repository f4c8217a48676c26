"""Exchanges: list, one, declare, delete (management_api.md sections 2 and 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from warren.amqp.names import checked_new_name, clean_name
from warren.core.errors import CommandInvalid
from warren.core.exchange import Exchange
from warren.core.field import from_json, to_json
from warren.core.ports import Commit
from warren.core.routing import DEFAULT_EXCHANGE
from warren.core.topology_access import check_exchange
from warren.core.vhost import PREDECLARED, VirtualHost
from warren.mgmt.api import stats_json
from warren.mgmt.api.changes import audit
from warren.mgmt.http.endpoint import CREATED, NO_CONTENT, Endpoint, Reply
from warren.mgmt.http.errors import BadRequest, NotAuthorised, ObjectNotFound
from warren.mgmt.http.listing import Listing, Row, answer, answer_row
from warren.mgmt.http.request import ApiRequest, boolean, check_length, text
from warren.mgmt.statistics import figures
from warren.mgmt.waiting import taken

BUILT_IN = frozenset(name for name, _, _ in PREDECLARED)
INTERNAL_USER = "rmq-internal"


class ListedExchange(NamedTuple):
    vhost: VirtualHost
    exchange: Exchange


class ExchangeRows:
    """Makes the JSON of exchanges for one request."""

    def __init__(self, request: ApiRequest) -> None:
        self._node = request.node
        self._track = request.managed.statistics.exchanges

    def row(self, listed: ListedExchange) -> Row:
        vhost, exchange = listed
        current = figures.exchange_figures(exchange)
        rates = self._track.rates(exchange, self._node.clock.now(), current)
        stats = stats_json.exchange_stats(current, rates)
        policy = self._node.policies.applied(vhost.name, exchange.name, "exchange").policy
        return {
            "name": exchange.name,
            "vhost": vhost.name,
            "type": exchange.type,
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "arguments": to_json(exchange.arguments),
            "user_who_performed_action": INTERNAL_USER if exchange.name in BUILT_IN else "",
            **({"policy": policy} if policy is not None else {}),
            **({"message_stats": stats} if stats else {}),
        }

    def full_row(self, listed: ListedExchange) -> Row:
        return {**self.row(listed), "incoming": [], "outgoing": []}


def _listing(request: ApiRequest) -> Listing[ListedExchange]:
    return Listing(row=ExchangeRows(request).row, name=lambda listed: listed.exchange.name)


def _exchanges_of(vhosts: list[VirtualHost]) -> Iterator[ListedExchange]:
    for vhost in vhosts:
        for name in sorted(vhost.exchanges):
            yield ListedExchange(vhost, vhost.exchanges[name])


async def list_exchanges(request: ApiRequest) -> Any:
    return await answer(request, _exchanges_of(request.visible_vhosts()), _listing(request))


async def list_exchanges_of_vhost(request: ApiRequest) -> Any:
    return await answer(request, _exchanges_of([request.vhost()]), _listing(request))


def exchange_of(request: ApiRequest) -> ListedExchange:
    """The exchange in the path. Raises `ObjectNotFound`."""
    vhost = request.vhost()
    exchange = vhost.exchanges.get(request.exchange_name("exchange"))
    if exchange is None:
        raise ObjectNotFound()
    return ListedExchange(vhost, exchange)


async def get_exchange(request: ApiRequest) -> Any:
    return answer_row(request, ExchangeRows(request).full_row(exchange_of(request)))


async def put_exchange(request: ApiRequest) -> Reply:
    vhost, name = request.vhost(), clean_name(request.exchange_name("exchange"))
    body = await request.body()
    wanted = {
        "durable": boolean(body.get("durable"), False),
        "auto_delete": boolean(body.get("auto_delete"), False),
        "internal": boolean(body.get("internal"), False),
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
        raise BadRequest(f"invalid exchange type '{kind}'") from error
    request.check(vhost.name, "exchange", name, "configure")

    def declare() -> Commit | None:
        existing = vhost.exchanges.get(name)
        if existing is not None:
            vhost.check_exchange_equivalent(existing, kind, arguments=table, **wanted)
            return None
        checked_new_name("exchange", name)
        check_exchange(request.asking(vhost), name, table)
        return vhost.declare_exchange(name, kind, arguments=table, **wanted)

    return CREATED if await taken(declare) else NO_CONTENT


async def delete_exchange(request: ApiRequest) -> None:
    vhost, exchange = exchange_of(request)
    name = exchange.name
    request.check(vhost.name, "exchange", name, "configure")
    if name == DEFAULT_EXCHANGE:
        raise NotAuthorised("Access refused.")
    checked_new_name("exchange", name)
    if_unused = request.query_flag("if-unused")
    await taken(lambda: vhost.delete_exchange(name, if_unused=if_unused))
    audit(request, "exchange_deleted", vhost=vhost.name, exchange=name)


ENDPOINTS = [
    Endpoint("/exchanges", {"GET": list_exchanges}, summary="All exchanges"),
    Endpoint(
        "/exchanges/{vhost}", {"GET": list_exchanges_of_vhost}, summary="Exchanges of a vhost"
    ),
    Endpoint(
        "/exchanges/{vhost}/{exchange}",
        {"GET": get_exchange, "PUT": put_exchange, "DELETE": delete_exchange},
        summary="One exchange",
    ),
]
