"""Bindings: lists, one, bind, unbind (management_api.md section 2).

An address names a binding by its routing key, percent-encoded, followed by `~` and a fingerprint if
it has arguments; `~` alone stands for an empty key. A blank is a `+`. A `~` in a key is encoded
too, so that no two bindings have the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from warren.core.exchanges.binding import Binding, DestinationKind
from warren.core.exchanges.routing import DEFAULT_EXCHANGE
from warren.core.field import from_json, to_json
from warren.core.queues.queue import Queue
from warren.core.vhosts.topology_access import check_binding
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt.api.changes import audit
from warren.mgmt.http.endpoint import Endpoint, HttpReply
from warren.mgmt.http.errors import BadRequest, ObjectNotFound
from warren.mgmt.http.lazy_list import LazyList
from warren.mgmt.http.listing import Listing, Row, answer
from warren.mgmt.http.request import ApiRequest, routing_key
from warren.mgmt.http.slices import chunks
from warren.mgmt.waiting import taken

KINDS: dict[str, DestinationKind] = {"q": "queue", "e": "exchange"}
EMPTY = "~"


class ListedBinding(NamedTuple):
    vhost: VirtualHost
    binding: Binding


def binding_row(listed: ListedBinding) -> Row:
    vhost, binding = listed
    return {
        "source": binding.source,
        "vhost": vhost.name,
        "destination": binding.destination,
        "destination_type": binding.destination_kind,
        "routing_key": binding.routing_key,
        "arguments": to_json(binding.arguments),
        "properties_key": properties_key(binding),
    }


def properties_key(binding: Binding) -> str:
    key = quote_plus(binding.routing_key, errors="surrogateescape").replace("~", "%7E")
    if binding.fingerprint:
        return f"{key}~{binding.fingerprint}"
    return key or EMPTY


BINDINGS: Listing[ListedBinding] = Listing(
    row=binding_row, name=lambda listed: listed.binding.routing_key, paged=False
)


def default_binding(queue: str) -> Binding:
    """The binding that every queue has to the default exchange."""
    return Binding(DEFAULT_EXCHANGE, "queue", queue, queue, {})


def _bindings_of(request: ApiRequest, vhosts: list[VirtualHost]) -> LazyList[ListedBinding]:
    parts: list[tuple[Sequence[Any], Callable[[Any], ListedBinding]]] = []
    for vhost in vhosts:
        parts.append((request.managed.queues.of(vhost), partial(_listed_default, vhost)))
        parts.append((list(vhost.bindings()), partial(ListedBinding, vhost)))
    return LazyList(parts)


def _listed_default(vhost: VirtualHost, queue: Queue) -> ListedBinding:
    return ListedBinding(vhost, default_binding(queue.name))


def _listed(vhost: VirtualHost, bindings: list[Binding]) -> LazyList[ListedBinding]:
    return LazyList([(bindings, partial(ListedBinding, vhost))])


async def list_bindings(request: ApiRequest) -> Any:
    return await answer(request, _bindings_of(request, request.visible_vhosts()), BINDINGS)


async def list_bindings_of_vhost(request: ApiRequest) -> Any:
    return await answer(request, _bindings_of(request, [request.vhost()]), BINDINGS)


async def list_bindings_of_queue(request: ApiRequest) -> Any:
    vhost, name = request.vhost(), request.name("queue")
    if name not in vhost.queues:
        raise ObjectNotFound()
    bindings = [default_binding(name), *vhost.bindings_to("queue", name)]
    return await answer(request, _listed(vhost, bindings), BINDINGS)


async def list_bindings_from(request: ApiRequest) -> Any:
    vhost, exchange = _exchange(request, "exchange")
    if exchange == DEFAULT_EXCHANGE:
        queues = request.managed.queues.of(vhost)
        return await answer(
            request, LazyList([(queues, partial(_listed_default, vhost))]), BINDINGS
        )
    bindings = list(vhost.exchanges[exchange].bindings)
    return await answer(request, _listed(vhost, bindings), BINDINGS)


async def list_bindings_to(request: ApiRequest) -> Any:
    vhost, exchange = _exchange(request, "exchange")
    bindings = vhost.bindings_to("exchange", exchange)
    return await answer(request, _listed(vhost, bindings), BINDINGS)


def _exchange(request: ApiRequest, part: str) -> tuple[VirtualHost, str]:
    vhost, name = request.vhost(), request.exchange_name(part)
    if name not in vhost.exchanges:
        raise ObjectNotFound()
    return vhost, name


def _ends(request: ApiRequest) -> tuple[VirtualHost, str, DestinationKind, str]:
    """The virtual host, source, kind of destination and destination in the path.

    Raises `ObjectNotFound`; for POST its text names the exchange or queue that is missing.
    """
    vhost, source = request.vhost(), request.exchange_name("source")
    kind = KINDS.get(request.name("kind"))
    if kind is None:
        raise ObjectNotFound()
    if source not in vhost.exchanges:
        raise _end_missing(request, "exchange", source)
    destination = request.name("destination")
    if kind == "exchange":
        destination = request.exchange_name("destination")
    there = vhost.queues if kind == "queue" else vhost.exchanges
    if destination not in there:
        raise _end_missing(request, kind, destination)
    return vhost, source, kind, destination


def _end_missing(request: ApiRequest, kind: DestinationKind, name: str) -> ObjectNotFound:
    if request.http.method != "POST":
        return ObjectNotFound()
    return ObjectNotFound("not_found", f"no {kind} '{name}' in vhost '{request.vhost().name}'")


async def _between(request: ApiRequest) -> tuple[VirtualHost, list[Binding]]:
    vhost, source, kind, destination = _ends(request)
    if source == DEFAULT_EXCHANGE:
        return vhost, [default_binding(destination)] if kind == "queue" else []
    bindings = vhost.bindings_to(kind, destination)
    return vhost, [one async for some in chunks(bindings) for one in some if one.source == source]


async def list_between(request: ApiRequest) -> Any:
    return await answer(request, _listed(*await _between(request)), BINDINGS)


async def bind(request: ApiRequest) -> HttpReply:
    vhost, source, kind, destination = _ends(request)
    body = await request.body()
    arguments = body.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise BadRequest("arguments should be an object")
    key = routing_key(body.get("routing_key", ""))
    binding = Binding(source, kind, destination, key, from_json(arguments))
    _check(request, vhost, binding)
    await taken(lambda: vhost.bind(binding, None))
    location = f"{quote(destination, safe='')}/{quote(properties_key(binding), safe='~')}"
    return HttpReply(201, None, {"Location": location})


def _check(request: ApiRequest, vhost: VirtualHost, binding: Binding) -> None:
    check_binding(
        request.asking(vhost),
        binding.destination_kind,
        binding.destination,
        binding.source,
        binding.routing_key,
    )


async def _one(request: ApiRequest) -> ListedBinding:
    key = request.name("key")
    vhost, bindings = await _between(request)
    async for some in chunks(bindings):
        for binding in some:
            shown = properties_key(binding)
            if key in (shown, unquote(shown), unquote_plus(shown), shown.replace("+", "%20")):
                return ListedBinding(vhost, binding)
    raise ObjectNotFound()


async def get_binding(request: ApiRequest) -> Any:
    return binding_row(await _one(request))


async def unbind(request: ApiRequest) -> None:
    vhost, binding = await _one(request)
    _check(request, vhost, binding)
    await taken(lambda: vhost.unbind(binding, None))
    audit(
        request,
        "binding_deleted",
        vhost=vhost.name,
        source=binding.source,
        destination=binding.destination,
        routing_key=binding.routing_key,
    )


ENDPOINTS = [
    Endpoint("/bindings", {"GET": list_bindings}, summary="All bindings"),
    Endpoint("/bindings/{vhost}", {"GET": list_bindings_of_vhost}, summary="Bindings of a vhost"),
    Endpoint(
        "/bindings/{vhost}/e/{source}/{kind}/{destination}",
        {"GET": list_between, "POST": bind},
        summary="Bindings between an exchange and a queue (q) or an exchange (e)",
    ),
    Endpoint(
        "/bindings/{vhost}/e/{source}/{kind}/{destination}/{key}",
        {"GET": get_binding, "DELETE": unbind},
        summary="One binding",
    ),
    Endpoint(
        "/queues/{vhost}/{queue}/bindings",
        {"GET": list_bindings_of_queue},
        summary="Bindings of a queue",
    ),
    Endpoint(
        "/exchanges/{vhost}/{exchange}/bindings/source",
        {"GET": list_bindings_from},
        summary="Bindings an exchange is the source of",
    ),
    Endpoint(
        "/exchanges/{vhost}/{exchange}/bindings/destination",
        {"GET": list_bindings_to},
        summary="Bindings that lead to an exchange",
    ),
]
