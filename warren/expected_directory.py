"""What a data directory has to be for the node that is started on it."""

from __future__ import annotations

from warren.config import Config
from warren.persist.definitions.second_copy import expect_definitions
from warren.persist.disk.cluster_file import expect_no_cluster
from warren.persist.disk.data_directory import DataDirectory, expect_one_process


def expect_directory(config: Config, directory: DataDirectory) -> None:
    """Refuse a directory with data that this node, as it is configured, would not understand.

    Raises `DataDirectoryRefused`, OSError.
    """
    if config.process is None:
        expect_one_process(directory.path)
    if config.cluster is None:
        expect_no_cluster(directory.path)
    expect_definitions(directory)
