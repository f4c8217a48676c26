"""Definitions over HTTP: export, download and import (management_api.md section 4)."""

from __future__ import annotations

import string
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from warren.mgmt.api.changes import audit
from warren.mgmt.api.validation_texts import PREFIX, escaped
from warren.mgmt.definitions.errors import DefinitionsRefused
from warren.mgmt.definitions.export import Document, export_all, export_vhost
from warren.mgmt.definitions.load import import_definitions, parsed
from warren.mgmt.http.endpoint import NO_CONTENT, Endpoint, HttpReply, Right
from warren.mgmt.http.errors import BadRequest
from warren.mgmt.http.listing import answer_row
from warren.mgmt.http.request import BODY_BYTES_MAX, ApiRequest

FORM = "multipart/form-data"
IN_FILE_NAMES = frozenset(string.ascii_letters + string.digits + "-_.@+ ")


async def get_all(request: ApiRequest) -> HttpReply:
    return _download(request, export_all(request.node))


async def get_vhost(request: ApiRequest) -> HttpReply:
    if request.name("vhost") not in request.node.vhosts:
        raise BadRequest("vhost_not_found")
    return _download(request, export_vhost(request.node, request.vhost().name))


def _download(request: ApiRequest, exported: Document) -> HttpReply:
    headers = {}
    wanted = request.query("download")
    if wanted:
        name = "".join(letter if letter in IN_FILE_NAMES else "_" for letter in wanted)
        headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return HttpReply(200, answer_row(request, exported), headers)


async def post_all(request: ApiRequest) -> HttpReply:
    return await _import(request, None)


async def post_vhost(request: ApiRequest) -> HttpReply:
    return await _import(request, request.vhost().name)


async def _import(request: ApiRequest, vhost: str | None) -> HttpReply:
    if request.http.content_type == FORM:
        octets, redirect = await _form(request.http)
    else:
        octets, redirect = await request.http.read(), None
    caller = request.caller
    try:
        imported = await import_definitions(
            request.node,
            await parsed(octets, request.node.clock),
            vhost=vhost,
            acting_user=None if caller.local else caller.name,
        )
    except DefinitionsRefused as error:
        # Items before the fault have been imported.
        audit(request, "definitions_import_ended", vhost=vhost, reason=error.text)
        reason = error.reason
        if isinstance(reason, str) and reason.startswith(PREFIX):
            reason = escaped(reason)
        raise BadRequest(reason) from error
    audit(request, "definitions_imported", vhost=vhost, items=imported.items)
    return NO_CONTENT if redirect is None else HttpReply(303, None, {"Location": redirect})


async def _form(http: web.Request) -> tuple[bytes, str | None]:
    """The file of a web page's upload form, and the address to redirect the browser to, if any.

    Raises `BadRequest`.
    """
    try:
        form = await http.post()
    except (ValueError, AssertionError) as error:
        raise BadRequest("the body is no form") from error
    file, redirect = form.get("file"), form.get("redirect")
    if isinstance(file, web.FileField):
        with file.file:
            octets = file.file.read()
    elif isinstance(file, bytes | bytearray):
        octets = bytes(file)
    elif isinstance(file, str):
        octets = file.encode("utf-8", "surrogateescape")
    else:
        raise BadRequest("failed_to_parse_json")
    if redirect is not None and not (isinstance(redirect, str) and _leads_here(redirect)):
        raise BadRequest("redirect should be an address on this server")
    return octets, redirect


def _leads_here(address: str) -> bool:
    """Whether a redirect stays on this server, even if a browser reads the address generously:
    browsers take `\\` for `/` and ignore white space."""
    if not address.isprintable() or address != address.strip() or "\\" in address:
        return False
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    return not (parts.scheme or parts.netloc or address.startswith("//"))


_ALL = {"GET": get_all, "POST": post_all}


async def list_unreadable(request: ApiRequest) -> Any:
    """Definitions in the store that are damaged or of an unknown kind; the node ignores them."""
    return [one._asdict() for one in request.node.metadata.unreadable.values()]


ENDPOINTS = [
    Endpoint(
        path,
        methods,
        Right.ADMINISTRATOR,
        summary=summary,
        body_bytes_max=BODY_BYTES_MAX,
    )
    for path, methods, summary in (
        ("/definitions", _ALL, "All definitions"),
        ("/all-configuration", _ALL, "All definitions"),
        ("/definitions/{vhost}", {"GET": get_vhost, "POST": post_vhost}, "Definitions of a vhost"),
    )
]
ENDPOINTS.append(
    Endpoint(
        "/unreadable-definitions",
        {"GET": list_unreadable},
        Right.MONITOR,
        "Definitions that are kept and cannot be read",
    )
)
