"""A description of the API, in OpenAPI 3.1, made from the endpoints themselves.

`BODIES` describes the bodies of requests; the rest follows from paths, methods and rights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from warren import __version__
from warren.mgmt.api import delayed
from warren.mgmt.http.endpoint import Endpoint, Right

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_FLAG: Schema = {"oneOf": [{"type": "boolean"}, {"enum": ["true", "false"]}]}
_OBJECT: Schema = {"type": "object"}
_TAGS: Schema = {"oneOf": [{"type": "string"}, {"type": "array", "items": _TEXT}]}


def _body(required: Iterable[str] = (), **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    return schema


_POLICY = _body(
    ("pattern", "definition"),
    pattern=_TEXT,
    definition=_OBJECT,
    priority={"type": "number"},
    **{"apply-to": {"enum": ["queues", "exchanges", "all"]}},
)
_LIMIT = _body(("value",), value=_WHOLE)

BODIES: Mapping[tuple[str, str], Schema] = {
    ("PUT", "/cluster-name"): _body(("name",), name=_TEXT),
    ("PUT", "/queues/{vhost}/{queue}"): _body(
        durable=_FLAG, auto_delete=_FLAG, arguments=_OBJECT, node=_TEXT
    ),
    ("PUT", "/exchanges/{vhost}/{exchange}"): _body(
        type=_TEXT, durable=_FLAG, auto_delete=_FLAG, internal=_FLAG, arguments=_OBJECT
    ),
    ("POST", "/bindings/{vhost}/e/{source}/{kind}/{destination}"): _body(
        routing_key=_TEXT, arguments=_OBJECT
    ),
    ("POST", "/exchanges/{vhost}/{exchange}/publish"): _body(
        ("properties", "routing_key", "payload", "payload_encoding"),
        properties=_OBJECT,
        routing_key=_TEXT,
        payload=_TEXT,
        payload_encoding={"enum": ["string", "base64"]},
    ),
    ("POST", "/queues/{vhost}/{queue}/get"): _body(
        ("count", "ackmode", "encoding"),
        count=_WHOLE,
        ackmode={
            "enum": [
                "ack_requeue_true",
                "ack_requeue_false",
                "reject_requeue_true",
                "reject_requeue_false",
            ]
        },
        encoding={"enum": ["auto", "base64"]},
        truncate=_WHOLE,
    ),
    ("POST", "/queues/{vhost}/{queue}/actions"): _body(
        ("action",), action={"enum": ["sync", "cancel_sync"]}
    ),
    ("PUT", "/vhosts/{vhost}"): _body(
        description=_TEXT, tags=_TAGS, defaultqueuetype=_TEXT, tracing=_FLAG
    ),
    ("PUT", "/users/{user}"): _body(
        ("tags",), password=_TEXT, password_hash=_TEXT, hashing_algorithm=_TEXT, tags=_TAGS
    ),
    ("POST", "/users/bulk-delete"): _body(("users",), users={"type": "array", "items": _TEXT}),
    ("PUT", "/permissions/{vhost}/{user}"): _body(
        ("configure", "write", "read"), configure=_TEXT, write=_TEXT, read=_TEXT
    ),
    ("PUT", "/topic-permissions/{vhost}/{user}"): _body(
        ("exchange", "write", "read"), exchange=_TEXT, write=_TEXT, read=_TEXT
    ),
    ("PUT", "/policies/{vhost}/{name}"): _POLICY,
    ("PUT", "/operator-policies/{vhost}/{name}"): _POLICY,
    ("PUT", "/parameters/{component}/{vhost}/{name}"): _body(("value",), value={}),
    ("PUT", "/global-parameters/{name}"): _body(("value",), value={}),
    ("PUT", "/vhost-limits/{vhost}/{name}"): _LIMIT,
    ("PUT", "/user-limits/{user}/{name}"): _LIMIT,
    ("POST", "/snapshots"): _body(
        vhost=_TEXT,
        queues={"type": "array", "items": _TEXT},
        pattern=_TEXT,
        lease_s={"type": "number"},
        state=_FLAG,
        cursor=_TEXT,
        holder=_TEXT,
    ),
    ("PUT", "/snapshots/{snapshot}"): _body(lease_s={"type": "number"}),
    ("POST", "/snapshots/cursors/{cursor}"): _body(
        ("action", "holder"),
        action={"enum": ["take_cursor", "release_others", "why_gone", "leave_cursor"]},
        holder=_TEXT,
        octets_max=_WHOLE,
        needed={"type": "array", "items": _TEXT},
        snapshot=_TEXT,
    ),
    ("POST", "/definitions"): _OBJECT,
    ("POST", "/definitions/{vhost}"): _OBJECT,
}

LIST_PARAMETERS = {
    "page": _WHOLE,
    "page_size": {"type": "integer", "minimum": 1, "maximum": 500},
    "name": _TEXT,
    "use_regex": _FLAG,
    "sort": _TEXT,
    "sort_reverse": _FLAG,
    "columns": _TEXT,
}

PARAMETERS: Mapping[str, Schema] = {
    delayed.LIST: {
        "count": {"type": "integer", "minimum": 0, "maximum": delayed.COUNT_MAX},
        "filter": _TEXT,
        "from": _TEXT,
        "offset": {"type": "integer", "minimum": 0, "maximum": delayed.OFFSET_MAX},
        "order": {"type": "string", "enum": list(delayed.ORDERS)},
        "truncate": {"type": "integer", "minimum": 0},
    },
}
"""The query parameters of lists that do not take `LIST_PARAMETERS`."""

RIGHTS = {
    Right.ANYBODY: "Needs no login.",
    Right.USER: "For any management user; lists show what the user may see.",
    Right.MONITOR: "For users with the tag monitoring or administrator.",
    Right.POLICYMAKER: "For users with the tag policymaker or administrator.",
    Right.ADMINISTRATOR: "For users with the tag administrator.",
}


def description(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The endpoints as an OpenAPI document, without those that only the command line may use."""
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        operations = {
            method.lower(): _operation(endpoint, method)
            for method in endpoint.methods
            if endpoint.right_for(method) is not Right.LOCAL
        }
        if operations:
            names = re.findall(r"{(\w+)}", endpoint.path)
            paths[endpoint.path] = {
                "parameters": [
                    {"name": name, "in": "path", "required": True, "schema": _TEXT}
                    for name in names
                ],
                **operations,
            }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Warren management API",
            "version": __version__,
            "description": "The management API of RabbitMQ 3.10, as Warren serves it.",
        },
        "servers": [{"url": "/api"}],
        "components": {"securitySchemes": {"basic": {"type": "http", "scheme": "basic"}}},
        "security": [{"basic": []}],
        "paths": paths,
    }


def _operation(endpoint: Endpoint, method: str) -> dict[str, Any]:
    right = endpoint.right_for(method)
    responses = {
        "200": {"description": "The answer, as JSON"},
        "201": {"description": "Made"},
        "204": {"description": "Done"},
        "400": {"description": "Refused; `reason` says why"},
        "401": {"description": "Not logged in, or not allowed"},
        "404": {"description": "Not there"},
    }
    operation: dict[str, Any] = {
        "summary": endpoint.summary or endpoint.path,
        "operationId": re.sub(r"\W+", "_", f"{method}{endpoint.path}".lower()).strip("_"),
        "description": RIGHTS[right],
        "responses": responses,
    }
    if right is Right.ANYBODY:
        operation["security"] = []
    if method == "GET":
        operation["parameters"] = [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in PARAMETERS.get(endpoint.path, LIST_PARAMETERS).items()
        ]
    body = BODIES.get((method, endpoint.path))
    if body is not None:
        operation["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return operation
