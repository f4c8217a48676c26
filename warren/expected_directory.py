"""Checks whether a node may start on a data directory."""

from __future__ import annotations

from warren.config import Config
from warren.persist.definitions.second_copy import expect_definitions
from warren.persist.disk.cluster_file import expect_no_cluster, forget_beginning
from warren.persist.disk.data_directory import DataDirectory, expect_one_process


def expect_directory(config: Config, directory: DataDirectory) -> None:
    """Refuse a directory with data that this node, as it is configured, would not understand.

    A node that is started without a cluster gives up the cluster that it was about to begin.
    Raises `DataDirectoryRefused`, OSError.
    """
    if config.process is None:
        expect_one_process(directory.path)
    if config.cluster is None:
        expect_no_cluster(directory.path)
        forget_beginning(directory.path)
    expect_definitions(directory)
