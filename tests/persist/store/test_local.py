"""Errors possible only with local files: the order of syncs, leftovers, crashes."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from persist.store import (
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnsuitable,
    open_store,
)
from persist.store.local import from_os


class DiskLog:
    """Records syncs, renames, links and new folders in order, and passes them on."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self._root = root
        fsync, replace, link, mkdir = os.fsync, os.replace, os.link, os.mkdir

        def logged_fsync(descriptor: int) -> None:
            self._note("sync", os.readlink(f"/proc/self/fd/{descriptor}"))
            fsync(descriptor)

        def logged_replace(source: str, target: str) -> None:
            self._note("rename to", target)
            replace(source, target)

        def logged_link(source: str, target: str) -> None:
            self._note("link to", target)
            link(source, target)

        def logged_mkdir(path: str, mode: int = 0o777) -> None:
            self._note("make", path)
            mkdir(path, mode)

        monkeypatch.setattr(os, "fsync", logged_fsync)
        monkeypatch.setattr(os, "replace", logged_replace)
        monkeypatch.setattr(os, "link", logged_link)
        monkeypatch.setattr(os, "mkdir", logged_mkdir)

    def _note(self, what: str, path: str) -> None:
        name = os.path.relpath(path, self._root)
        folder, _, last = name.rpartition("/")
        if last.startswith(".tmp-"):
            name = f"{folder}/temporary"
        self.events.append(f"{what} {name}")


def test_a_put_syncs_the_file_before_the_name_and_every_new_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"file://{tmp_path}/lake")
    disk = DiskLog(tmp_path, monkeypatch)
    store.put("a/b/object", b"x")
    assert disk.events == [
        *("make lake", "sync ."),
        *("make lake/a", "sync lake"),
        *("make lake/a/b", "sync lake/a"),
        *("sync lake/a/b/temporary", "rename to lake/a/b/object", "sync lake/a/b"),
    ]
    disk.events.clear()
    store.create("a/b/other", b"y")
    assert disk.events == ["sync lake/a/b/temporary", "link to lake/a/b/other", "sync lake/a/b"]


def test_a_folder_made_by_another_process_is_synced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lake" / "a").mkdir(parents=True)
    store = open_store(f"file://{tmp_path}/lake")
    disk = DiskLog(tmp_path, monkeypatch)
    store.put("a/1", b"")
    store.put("a/2", b"")
    assert disk.events.count("sync lake") == 1
    assert disk.events.index("sync lake") < disk.events.index("rename to lake/a/1")


def test_a_refused_create_syncs_the_winners_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"file://{tmp_path}")
    store.create("v/1", b"winner")
    disk = DiskLog(tmp_path, monkeypatch)
    with pytest.raises(StoreError):
        store.create("v/1", b"loser")
    assert disk.events[-1] == "sync v"


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = open_store(f"file://{tmp_path}")
    store.put("a/kept", b"old")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            store.put("a/kept", b"new")
    assert store.get("a/kept") == b"old"
    assert os.listdir(tmp_path / "a") == ["kept"]


def test_temporary_files_never_show(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    store.put("a/object", b"")
    (tmp_path / "a" / ".tmp-left-by-a-crash").write_bytes(b"half")
    assert [found.path for found in store.list("")] == ["a/object"]
    with pytest.raises(ValueError, match=r"\.tmp-"):
        store.put("a/.tmp-mine", b"")


def test_a_folder_removed_by_another_program_is_made_again(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/lake")
    store.put("a/b/1", b"1")
    shutil.rmtree(tmp_path / "lake" / "a")
    assert list(store.list("")) == []
    store.put("a/b/2", b"2")
    assert store.get("a/b/2") == b"2"


def test_a_missing_or_replaced_root_is_unreachable_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    root, mounted = tmp_path / "lake", tmp_path / "mounted"
    store = open_store(f"file://{root}")
    store.put("a/1", b"1")
    root.rename(mounted)
    for is_mount_point in (False, True):
        if is_mount_point:
            root.mkdir()
        for call in (
            lambda: store.put("a/2", b""),
            lambda: store.create("a/2", b""),
            lambda: store.get("a/1"),
            lambda: store.open("a/1"),
            lambda: store.exists("a/1"),
            lambda: list(store.list("")),
        ):
            with pytest.raises(StoreUnavailable, match="is it still mounted"):
                call()
    assert list(root.iterdir()) == []
    root.rmdir()
    mounted.rename(root)
    assert [each.path for each in store.list("")] == ["a/1"]
    store.put("a/2", b"2")


def test_an_open_file_stays_whole_when_its_name_is_overwritten_or_deleted(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    store.put("object", b"old content")
    with store.open("object") as file:
        assert file.read(3) == b"old"
        store.put("object", b"new")
        store.delete("object")
        assert file.read() == b" content"


def test_a_circular_link_to_a_folder_is_not_followed(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    store.put("a/object", b"")
    (tmp_path / "a" / "circle").symlink_to(tmp_path, target_is_directory=True)
    assert [found.path for found in store.list("")] == ["a/object"]


def test_reading_a_store_that_does_not_exist_creates_nothing(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/lake")
    assert list(store.list("")) == []
    with pytest.raises(ObjectNotFound):
        store.get("a")
    store.delete("a")
    assert not (tmp_path / "lake").exists()


def test_an_object_where_a_folder_is_needed_is_an_error_of_the_name(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    store.put("a", b"")
    with pytest.raises(StoreError, match="cannot hold this name") as under_file:
        store.put("a/b", b"")
    store.put("c/d", b"")
    with pytest.raises(StoreError, match="cannot hold this name") as over_folder:
        store.put("c", b"")
    with pytest.raises(StoreError, match="cannot hold this name") as too_long:
        store.put("n" * 300, b"")
    assert {type(raised.value) for raised in (under_file, over_folder, too_long)} == {StoreError}


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EACCES, StoreDenied),
        (errno.EROFS, StoreDenied),
        (errno.EOPNOTSUPP, StoreUnsuitable),
        (errno.EIO, StoreUnavailable),
        (errno.ESTALE, StoreUnavailable),
    ],
)
def test_errors_of_the_system_say_who_must_act(number: int, expected: type[StoreError]) -> None:
    error = from_os(OSError(number, os.strerror(number)), "file:///lake/a")
    assert type(error) is expected
    assert "file:///lake/a" in str(error)
    assert os.strerror(number) in str(error)


WRITER = """
import itertools, sys
from persist.store import open_store

store = open_store(sys.argv[1])
for n in itertools.count():
    body = (b"%020d" % n) * 10_000
    store.put("hot/object", body)
    store.create(f"new/{sys.argv[2]}-{n:06d}", body)
    print(n, flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_whole_objects_only(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/lake"
    store = open_store(url)
    acknowledged: list[str] = []
    for round_ in range(8):
        command = [sys.executable, "-c", WRITER, url, str(round_)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(round_ + 1):
                acknowledged.append(f"new/{round_}-{int(writer.stdout.readline()):06d}")
            # The writer continues meanwhile, so the moment of the kill varies.
            writer.send_signal(signal.SIGKILL)
        listed = {found.path: found.bytes for found in store.list("")}
        assert set(acknowledged) <= set(listed)
        for path, size in listed.items():
            content = store.get(path)
            assert size == len(content) == 200_000
            assert content == content[:20] * 10_000
    store.put("hot/object", b"and writing goes on")
