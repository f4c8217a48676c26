"""The commands for backups, beside a node that runs, with the backups in an object store."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from server_process import ServerProcess
from warren_command import run_warren

from warren.compat_tests.raw_client import RawChannel, RawClient

if find_spec("pyarrow") is None:
    pytest.skip("pyarrow is not installed", allow_module_level=True)

MIB = 1 << 20


def warren(*arguments: object, code: int = 0) -> str:
    ran = run_warren(*arguments)
    assert ran.returncode == code, ran
    assert "secret" not in ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def confirmed(channel: RawChannel, bodies: list[bytes]) -> None:
    for body in bodies:
        channel.publish(body, "q", delivery_mode=2)
    channel.confirms(len(bodies))


def copied(said: str) -> float:
    """How many megabytes went to the store."""
    found = re.search(r", ([0-9.]+) MB of it copied", said)
    assert found is not None, said
    return float(found[1])


def ids(listed: str) -> list[str]:
    return re.findall(r"^(\d{8}T\d{6}Z-\w+)", listed, re.MULTILINE)


@pytest.mark.slow
def test_backups_are_created_verified_listed_and_restored(
    start_server: Callable[..., ServerProcess],
    connect: Callable[..., RawClient],
    s3_url: str,
    tmp_path: Path,
) -> None:
    server = start_server("--http", "127.0.0.1:0", data_dir=tmp_path / "data")
    channel = connect(server).channel()
    channel.declare("q", durable=True)
    channel.call("confirm.select")
    # More than one part of an upload.
    old = [b"%d " % number + bytes(MIB) for number in range(24)]
    confirmed(channel, old)
    assert copied(warren("backup", "create", tmp_path / "data", s3_url)) > 24
    new = [b"new"]
    confirmed(channel, new)
    said = warren("backup", "create", tmp_path / "data", s3_url)
    first, second = ids(warren("backup", "list", s3_url))
    # Log files of 16 MiB that are full are not copied again.
    assert second in said and copied(said) < 16
    for backup in (first, second):
        assert warren("backup", "verify", s3_url, backup).endswith("whole\n")

    for backup, bodies in ((first, old), (second, old + new)):
        warren("restore", s3_url, tmp_path / backup, "--backup", backup)
        restored = start_server("--node-name", "other@host", data_dir=tmp_path / backup)
        assert connect(restored).channel().bodies("q") == bodies
        restored.kill()

    channel.call("queue.purge", queue="q")
    port = re.search(r"http (\d+)", server.ready_line)
    assert port is not None
    target = f"http://guest:guest@127.0.0.1:{port[1]}"
    assert "25 moved" in warren("restore-queues", s3_url, target, "--queue", "q")
    assert channel.bodies("q") == old + new

    warren("backup", "remove", s3_url, "--keep", "1")
    assert ids(warren("backup", "list", s3_url)) == [second]
    assert warren("backup", "verify", s3_url).endswith("whole\n")
    # What is missing or damaged there is found, and restores nothing.
    fs = import_module("pyarrow.fs")
    files, folder = fs.FileSystem.from_uri(s3_url)
    stored = [
        info
        for info in files.get_file_info(fs.FileSelector(folder, recursive=True))
        if info.type is fs.FileType.File and info.size > MIB
    ]
    assert stored and urlsplit(s3_url).netloc.rpartition("@")[2] in stored[0].path
    files.delete_file(stored[0].path)
    assert "whole" not in warren("backup", "verify", s3_url, code=1)
    warren("restore", s3_url, tmp_path / "damaged", code=1)
