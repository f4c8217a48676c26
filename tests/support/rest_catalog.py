"""An Iceberg catalog that answers as the REST specification says; its tables are a SQL catalog's.

It takes what pyiceberg's client asks for when tables are made, found and changed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from pyiceberg.catalog.rest import CreateTableRequest, TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

STATUS: dict[type[Exception], int] = {
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    TableAlreadyExistsError: 409,
}


class RestCatalog:
    """The catalog, and how it behaves: so many answers to commits that count are lost."""

    def __init__(self, directory: Path, properties: dict[str, str]) -> None:
        self.answers_lost = 0
        self.commits = 0
        self._tables = SqlCatalog(
            "lake",
            uri=f"sqlite:///{directory}/rest-catalog.db",
            warehouse=f"file://{directory}",
            **properties,
        )
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, body: bytes) -> str:
        """Raises the errors in `STATUS`, and `ConnectionAbortedError` for a lost answer."""
        parts = [unquote(part) for part in path.partition("?")[0].split("/")[2:]]
        with self._lock:
            match method, parts:
                case "GET", ["config"]:
                    return json.dumps({"defaults": {}, "overrides": {}})
                case "POST", ["namespaces"]:
                    namespace = json.loads(body)["namespace"]
                    self._tables.create_namespace(tuple(namespace))
                    return json.dumps({"namespace": namespace, "properties": {}})
                case "GET" | "HEAD", ["namespaces", namespace]:
                    found = self._tables.load_namespace_properties((namespace,))
                    return json.dumps({"namespace": [namespace], "properties": found})
                case "POST", ["namespaces", namespace, "tables"]:
                    return self._create(namespace, CreateTableRequest.model_validate_json(body))
                case "GET", ["namespaces", namespace, "tables", name]:
                    return _described(self._tables.load_table((namespace, name)))
                case "POST", ["namespaces", namespace, "tables", name]:
                    return self._commit(
                        (namespace, name), CommitTableRequest.model_validate_json(body)
                    )
                case _:
                    raise NotImplementedError(f"{method} {path}")

    def _create(self, namespace: str, asked: CreateTableRequest) -> str:
        if (namespace, asked.name) in self._tables.list_tables((namespace,)):
            raise TableAlreadyExistsError(asked.name)
        make = (
            self._tables._create_staged_table if asked.stage_create else self._tables.create_table
        )
        return _described(
            make(
                (namespace, asked.name),
                asked.table_schema,
                asked.location,
                asked.partition_spec or UNPARTITIONED_PARTITION_SPEC,
                asked.write_order or UNSORTED_SORT_ORDER,
                asked.properties,
            )
        )

    def _commit(self, name: tuple[str, str], asked: CommitTableRequest) -> str:
        # The SQL catalog takes nothing but its name from the table.
        table = Table(name, cast(Any, None), "", cast(Any, None), self._tables)
        made = self._tables.commit_table(table, asked.requirements, asked.updates)
        self.commits += 1
        if self.answers_lost:
            self.answers_lost -= 1
            raise ConnectionAbortedError
        return made.model_dump_json(by_alias=True)


def _described(table: Table) -> str:
    return TableResponse(
        **{"metadata-location": table.metadata_location}, metadata=table.metadata
    ).model_dump_json(by_alias=True)


@contextmanager
def rest_catalog(directory: Path, **properties: str) -> Iterator[tuple[str, RestCatalog]]:
    """A catalog whose database is in this directory, and its URL."""
    catalog = RestCatalog(directory, properties)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                status, text = 200, catalog.answer(self.command, self.path, body)
            except ConnectionAbortedError:
                self.close_connection = True
                return
            except tuple(STATUS) as error:
                status = STATUS[type(error)]
                told = {"message": str(error), "type": type(error).__name__, "code": status}
                text = json.dumps({"error": told})
            octets = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(octets)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(octets)

        do_GET = do_POST = do_HEAD = _serve

        def log_message(self, *message: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="rest-catalog")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", catalog
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
