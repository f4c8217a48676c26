"""A node as a process of its own, and `warren ctl` to operate it with."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pika
from server_process import ServerProcess

from warren.mgmt.command_line import warren


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def rows(self) -> list[list[str]]:
        """The cells of a table without a banner."""
        return [line.split("\t") for line in self.lines]

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def ctl(*arguments: str, stdin: str = "", variables: dict[str, str] | None = None) -> Result:
    """Run a command as the shell would, but in this process."""
    out, err = io.StringIO(), io.StringIO()
    piped = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
    environment = {**os.environ, "COLUMNS": "100", **(variables or {})}
    code = 0
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        patch.object(sys, "stdin", piped),
        patch.dict(os.environ, environment, clear=True),
    ):
        try:
            warren.main(["ctl", *arguments], prog_name="warren")
        except SystemExit as end:
            assert isinstance(end.code, int)
            code = end.code
    return Result(code, out.getvalue(), err.getvalue())


class CtlNode:
    """A node that is running, and the commands it is told."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.data_directory = directory / "data"
        flags = ["--data-dir", str(self.data_directory), "--amqp", "127.0.0.1:0"]
        self.server = ServerProcess([*flags, *arguments], directory)
        self.name = self("status", "--formatter", "json").json["node"]

    def __call__(self, *arguments: str, stdin: str = "") -> Result:
        return ctl("--data-dir", str(self.data_directory), *arguments, stdin=stdin)

    def rows(self, *arguments: str) -> list[list[str]]:
        """The rows of a list, without banner and header."""
        result = self("-s", *arguments)
        assert (result.code, result.err) == (0, "")
        return result.rows

    @contextmanager
    def connected(self, name: str = "test") -> Iterator[pika.BlockingConnection]:
        parameters = pika.URLParameters(self.server.url)
        parameters.client_properties = {"connection_name": name}
        connection = pika.BlockingConnection(parameters)
        try:
            yield connection
        finally:
            if connection.is_open:
                connection.close()

    def end(self) -> None:
        self.server.kill()
