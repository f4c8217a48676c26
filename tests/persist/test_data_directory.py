"""A data directory that begins anew."""

from __future__ import annotations

from pathlib import Path

from warren.persist.data_directory import DataDirectory, DirectoryInUse


def test_a_directory_that_begins_anew_is_empty_and_of_another_node(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with DataDirectory.open(path) as directory:
        before = directory.node_id
        assert not directory.holds_data
        (directory.subdirectory("store") / "log").write_bytes(b"messages")
        (path / "cluster.json").write_text("{}")
        (path / "warren.conf").write_text("the user's")
        (path / "elsewhere").symlink_to(tmp_path)
        assert directory.holds_data
        directory.begin_anew(["warren.conf"])
        assert directory.node_id != before
        left = {entry.name for entry in path.iterdir()}
        assert left == {"identity.json", "lock", "warren.conf"}
        assert tmp_path.exists()
        # It is still ours.
        try:
            DataDirectory.open(path)
        except DirectoryInUse:
            pass
        else:
            raise AssertionError("somebody else opened it")
        again = directory.node_id
    with DataDirectory.open(path) as directory:
        assert directory.node_id == again
