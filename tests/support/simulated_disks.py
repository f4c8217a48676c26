"""What tests of the simulated disk begin with and look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from disk import SimulatedDisk, SimulatedFile

SEEDS = range(300)

ROOT = Path("/")

A = Path("/a")

B = Path("/b")


def disks() -> Iterator[SimulatedDisk]:
    for seed in SEEDS:
        yield SimulatedDisk(Random(seed))


def durable(disk: SimulatedDisk, path: Path, data: bytes) -> SimulatedFile:
    file = disk.create(path)
    file.write(0, data)
    file.sync()
    disk.sync_directory(path.parent)
    return file


def content(disk: SimulatedDisk, path: Path) -> bytes:
    file = disk.open(path, writable=False)
    return file.read(0, file.size())


def all_of(disk: SimulatedDisk) -> dict[str, bytes]:
    return {str(path): content(disk, path) for path in disk.files()}
