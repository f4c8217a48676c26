"""Backup directories: what is kept once, what is found damaged, what is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import BinaryIO

import pytest
from click.testing import CliRunner

from warren.backup.archive import Archive, content_name
from warren.backup.errors import BackupDamaged, BackupRefused, ShelfRefused
from warren.backup.moment import copy, link_or_copy, moment
from warren.backup.restore import restore
from warren.backup.shelf import DirectoryShelf
from warren.backup.shelves import is_url, shelf_at
from warren.mgmt.backup_command import backup as backup_command
from warren.mgmt.backup_command import restore as restore_command
from warren.persist.disk.data_directory import DataDirectory
from warren.persist.layout.format import Checkpoint, encode_checkpoint


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Looks like a data directory: three log files, the journal begins with the second."""
    path = tmp_path / "data"
    with DataDirectory.open(path) as directory:
        store = directory.subdirectory("store")
    for name in ("log", "queues/00000000000000aa", "transient", "quarantine"):
        (store / name).mkdir(parents=True)
    for number in (1, 2, 3):
        (store / "log" / f"{number:08x}.0.rdq").write_bytes(b"%d" % number * 1000)
    (store / "queues/00000000000000aa/000000000000.0.idx").write_bytes(b"index")
    (store / "transient/00000001.0.rdq").write_bytes(b"paged out")
    checkpoint(path, 2)
    return path


def checkpoint(data: Path, number: int) -> None:
    octets = encode_checkpoint(Checkpoint(bytes(16), number << 32, 1))
    (data / "store/checkpoint").write_bytes(octets)


@pytest.fixture(params=["directory", "mounted", "s3"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where an archive may be: a path or a URL."""
    if request.param == "directory":
        return tmp_path / "backups"
    if request.param == "mounted":
        return f"file://{tmp_path}/backups"
    url: str = request.getfixturevalue("s3_url")
    return url


@pytest.fixture
def archive(where: Path | str) -> Archive:
    return Archive.open(where, create=True)


@pytest.fixture
def local_archive(tmp_path: Path) -> Archive:
    return Archive.open(tmp_path / "backups", create=True)


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_what_is_restored_is_what_was_backed_up(
    data: Path, archive: Archive, tmp_path: Path
) -> None:
    made = archive.create(data)
    assert archive.verify(made) == []
    restore(archive, archive.backup(None), tmp_path / "restored")
    expected = contents(data)
    # What is of no use to a start is not in a backup.
    for useless in ("lock", "store/transient/00000001.0.rdq"):
        expected.pop(useless)
    assert contents(tmp_path / "restored") == expected
    assert not list((data / "store/pins").iterdir())


def test_what_did_not_change_is_copied_once(data: Path, archive: Archive) -> None:
    first = archive.create(data)
    (data / "store/log/00000004.0.rdq").write_bytes(b"new" * 100)
    second = archive.create(data)
    assert first.new_bytes == first.size
    assert second.new_bytes == 300
    assert [backup.id for backup in archive.backups()] == [first.id, second.id]
    assert archive.backup(first.id) == first

    # What only the first had goes with it, and nothing else.
    (data / "store/log/00000001.0.rdq").unlink()
    third = archive.create(data)
    assert archive.remove([first, second]) == 1000
    assert archive.verify(third) == []


def test_a_file_is_taken_as_it_was_at_the_moment(data: Path) -> None:
    last = data / "store/log/00000003.0.rdq"
    with moment(data) as files:
        with last.open("ab") as file:
            file.write(b"written later")
        (data / "store/log/00000002.0.rdq").unlink()
        taken = {file.path: file for file in files}
    assert taken["store/log/00000003.0.rdq"].size == 1000
    assert "store/log/00000002.0.rdq" in taken


def test_a_checkpoint_that_is_written_meanwhile_begins_the_moment_anew(data: Path) -> None:
    seen: list[str] = []

    def link(source: Path, target: Path) -> None:
        seen.append(source.name)
        if seen.count("00000002.0.rdq") == 1 and source.name == "00000002.0.rdq":
            # The node takes a checkpoint, and removes what is before it.
            checkpoint(data, 3)
            (data / "store/log/00000001.0.rdq").unlink()
        link_or_copy(source, target)

    with moment(data, link=link, pause=lambda seconds: None) as files:
        paths = {file.path for file in files}
        (found,) = [file.source for file in files if file.path == "store/checkpoint"]
        assert found.read_bytes() == (data / "store/checkpoint").read_bytes()
    assert "store/log/00000001.0.rdq" not in paths
    assert {"store/log/00000002.0.rdq", "store/log/00000003.0.rdq"} <= paths


def test_a_file_of_the_journal_that_goes_begins_the_moment_anew(data: Path) -> None:
    tries = 0

    def link(source: Path, target: Path) -> None:
        nonlocal tries
        if source.name == "00000002.0.rdq":
            tries += 1
            if tries == 1:
                raise FileNotFoundError(source)
        link_or_copy(source, target)

    with moment(data, link=link, pause=lambda seconds: None) as files:
        assert "store/log/00000002.0.rdq" in {file.path for file in files}
    assert tries == 2


def test_damage_is_found(data: Path, archive: Archive, tmp_path: Path) -> None:
    made = archive.create(data)
    by_path = {file.path: file.sha256 for file in made.files}
    archive.shelf.write(content_name(by_path["store/log/00000001.0.rdq"]), b"x" * 999)
    archive.shelf.remove(content_name(by_path["store/log/00000002.0.rdq"]))
    wrong = archive.verify(made)
    assert [line.split(":")[0] for line in wrong] == [
        "store/log/00000001.0.rdq",
        "store/log/00000002.0.rdq",
    ]
    with pytest.raises(BackupDamaged):
        restore(archive, made, tmp_path / "restored")
    # A node does not start from half of it.
    assert not (tmp_path / "restored/identity.json").exists()
    # The next backup puts it right.
    assert archive.create(data).new_bytes >= 1000


def test_what_is_refused(data: Path, archive: Archive, tmp_path: Path) -> None:
    made = archive.create(data)
    with pytest.raises(BackupRefused, match="not empty"):
        restore(archive, made, data)
    with pytest.raises(BackupRefused, match="no backup 20010101T000000Z-0000"):
        archive.backup("20010101T000000Z-0000")
    with pytest.raises(BackupRefused, match="no directory of backups"):
        Archive.open(tmp_path / "nowhere")
    for url in ("ftp://host/backups", "s3:/bucket", "nonsense://"):
        with pytest.raises(BackupRefused):
            Archive.open(url)
    with pytest.raises(BackupRefused, match="something other"):
        Archive.open(data, create=True)
    with pytest.raises(BackupRefused, match="no node has run there"):
        other = tmp_path / "other"
        DataDirectory.open(other).close()
        Archive.open(tmp_path / "others", create=True).create(other)


class BegunMeanwhile(DirectoryShelf):
    """Another process begins the archive just after this one has found none."""

    def is_foreign(self) -> bool:
        (self.path / ".archive.json.0123.new").touch()
        assert not super().is_foreign()
        (self.path / "archive.json").write_text('{"format": 1, "node_id": "n"}')
        (self.path / "files").mkdir()
        return super().is_foreign()


def test_an_archive_that_another_process_begins_meanwhile_is_one(tmp_path: Path) -> None:
    assert Archive.on(BegunMeanwhile(tmp_path), create=True).backups() == []


def test_one_process_at_a_time_works_on_a_directory(data: Path, local_archive: Archive) -> None:
    with pytest.raises(BackupRefused, match="another process"), local_archive.shelf.locked():
        Archive.on(local_archive.shelf, create=True).create(data)


def test_backups_of_another_node_are_not_mixed(data: Path, archive: Archive) -> None:
    archive.create(data)
    identity = data / "identity.json"
    identity.write_text('{"format": 1, "node_id": "%s"}' % ("1" * 32))
    with pytest.raises(BackupRefused, match="another node"):
        archive.create(data)


def test_two_nodes_that_begin_at_once_are_not_mixed(
    data: Path, archive: Archive, tmp_path: Path
) -> None:
    other = Archive.on(archive.shelf, create=True)
    archive.create(data)
    identity = data / "identity.json"
    identity.write_text('{"format": 1, "node_id": "%s"}' % ("1" * 32))
    with pytest.raises(BackupRefused, match="another node"):
        other.create(data)


def test_backups_do_not_stand_in_what_they_are_of(data: Path, tmp_path: Path) -> None:
    """Resetting the node would remove them."""
    (tmp_path / "link").symlink_to(data)
    for inside in (data / "backups", tmp_path / "link" / "backups", data / "store/queues/b"):
        with pytest.raises(BackupRefused, match="inside of the data directory"):
            Archive.open(inside, create=True).create(data)
        assert not inside.exists()
        with pytest.raises(BackupRefused, match="inside of the data directory"):
            Archive.open(f"file://{inside}", create=True).create(data)
        assert not inside.exists()


def test_the_latest_backup_is_the_one_made_last_whatever_the_clock_says(
    data: Path, local_archive: Archive, tmp_path: Path
) -> None:
    local_archive.create(data, now=lambda: 2_000_000_000.0)
    (data / "store/log/00000004.0.rdq").write_bytes(b"new")
    local_archive.create(data, now=lambda: 1_000_000_000.0)
    (data / "store/log/00000005.0.rdq").write_bytes(b"newer")
    last = local_archive.create(data, now=lambda: 1_000_000_000.0)
    assert local_archive.backup(None) == last
    arguments = ["remove", str(tmp_path / "backups"), "--keep", "1"]
    assert CliRunner().invoke(backup_command, arguments).exit_code == 0
    assert local_archive.backups() == [last]


def test_a_list_that_cannot_be_read_does_not_keep_the_next_backup_from_being_made(
    data: Path, archive: Archive
) -> None:
    damaged = archive.create(data)
    archive.shelf.write(f"backups/{damaged.id}.json", b"{")
    made = archive.create(data)
    assert archive.verify(made) == []
    with pytest.raises(BackupDamaged, match=damaged.id):
        archive.backups()
    # Which is the latest is not known, but any other can be asked for.
    with pytest.raises(BackupDamaged, match=damaged.id):
        archive.backup(None)
    assert archive.backup(made.id) == made


@pytest.mark.parametrize("octets", [b"y" * 1000, b"y" * 10])
def test_what_changes_while_it_is_copied_is_no_backup(
    data: Path, tmp_path: Path, octets: bytes
) -> None:
    changes = iter([True])

    class Changing(DirectoryShelf):
        def store(self, name: str, source: Path, size: int) -> str:
            if source.name.endswith("1.0.rdq") and next(changes, False):
                # Between the reading for the hash and the copying.
                (data / "store/log/00000001.0.rdq").write_bytes(octets)
            return super().store(name, source, size)

    changing = Archive.on(Changing(tmp_path / "backups"), create=True)
    with pytest.raises(BackupRefused, match=r"changed|shorter"):
        changing.create(data)
    assert changing.backups() == []
    assert changing.verify(changing.create(data)) == []


def test_a_file_that_is_replaced_while_it_is_copied_is_not_taken_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, new = (tmp_path / name for name in ("source", "target", "new"))
    source.write_bytes(b"old")
    new.write_bytes(b"new")
    os.utime(new, (2e9, 2e9))
    copy_all = shutil.copyfileobj

    def replaced_after(read: BinaryIO, written: BinaryIO) -> None:
        copy_all(read, written)
        new.rename(source)

    monkeypatch.setattr(shutil, "copyfileobj", replaced_after)
    copy(source, target)
    assert (source.read_bytes(), target.read_bytes()) == (b"new", b"old")
    assert target.stat().st_mtime_ns != source.stat().st_mtime_ns


@pytest.mark.parametrize(
    ("made", "why"), [(False, "does not exist"), (True, "is empty")], ids=["missing", "empty"]
)
def test_a_refused_backup_leaves_no_directory_behind(tmp_path: Path, made: bool, why: str) -> None:
    data = tmp_path / "mistyped"
    if made:
        data.mkdir()
    result = CliRunner().invoke(backup_command, ["create", str(data), str(tmp_path / "backups")])
    assert (result.exit_code, result.output) == (1, f"Error: {data} {why}\n")
    assert not (tmp_path / "backups").exists()


def test_a_place_that_cannot_be_made_is_named(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    result = CliRunner().invoke(backup_command, ["create", str(data), str(file / "backups")])
    assert (result.exit_code, result.output) == (1, f"Error: {file}/backups: Not a directory\n")


def test_a_password_in_a_url_is_not_shown(data: Path, archive: Archive) -> None:
    archive.create(data)
    with pytest.raises(BackupRefused) as refused:
        archive.backup("20010101T000000Z-0000")
    assert archive.shelf.shown in str(refused.value)
    assert "key:secret" not in archive.shelf.shown


@pytest.mark.parametrize(
    "place", ["hdfs:/x", "s3a:/bucket/x", "s3a:bucket", "file:/tmp/x", "s3:b?e=http://x", "s3:"]
)
def test_a_url_without_both_slashes_is_no_directory(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(backup_command, ["create", str(data), place])
    scheme = place.partition(":")[0]
    assert result.exit_code == 1 and f"write {scheme}://... for a URL" in result.output
    assert list(tmp_path.iterdir()) == [data]
    with pytest.raises(ShelfRefused):
        shelf_at(Path(place))


def test_a_directory_may_have_any_name() -> None:
    for place in ("./s3:bucket", "/s3:/bucket", "c:/x", "a/b:c", "08:02", "a/b://c", Path("x")):
        assert not is_url(place)
    for place in ("s3://bucket", "file:///x", "://x"):
        assert is_url(place)


@pytest.mark.parametrize("place", ["s3://", "s3a://", "s3:///", "s3://?region=eu-central-1"])
def test_a_url_without_a_bucket_is_refused(place: str) -> None:
    with pytest.raises(ShelfRefused, match=r"(names no|Missing) bucket"):
        shelf_at(place)


def test_the_commands(data: Path, tmp_path: Path) -> None:
    def warren(command: object, *arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(command, [str(argument) for argument in arguments])  # type: ignore[arg-type]
        return result.exit_code, result.output

    backups = tmp_path / "b"
    assert warren(backup_command, "list", backups)[0] == 1
    assert warren(backup_command, "create", data, backups)[0] == 0
    assert warren(backup_command, "create", data, backups)[0] == 0
    code, listed = warren(backup_command, "list", backups)
    assert (code, len(listed.splitlines())) == (0, 2)
    code, said = warren(backup_command, "verify", backups)
    assert code == 0 and said.endswith("whole\n")
    assert warren(backup_command, "remove", backups)[0] == 2
    assert "1 removed" in warren(backup_command, "remove", backups, "--keep", 1)[1]
    assert warren(restore_command, backups, tmp_path / "new")[0] == 0
    assert (tmp_path / "new/identity.json").exists()
    code, said = warren(restore_command, backups, tmp_path / "new")
    assert code == 1 and "is not empty" in said
