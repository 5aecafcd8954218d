"""A partition too large for memory is rewritten group by group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import trio

from persist.parquet.copy_on_write import CopyOnWrite, RewriteLimits
from persist.store.contract import StoreUnavailable
from persist.store.local import LocalStore
from tests.drivers.stage import KEYED, KEYS, Stage


class WatchedStore(LocalStore):
    """Fails one read of a file."""

    refuse_after = -1

    def open(self, path: str) -> pa.NativeFile:
        """The read counted by ``refuse_after`` fails."""
        if path.endswith(".parquet"):
            self.refuse_after -= 1
            if self.refuse_after == 0:
                raise StoreUnavailable("not now")
        return super().open(path)


@pytest.mark.parametrize("refuse", [False, True])
def test_keys_stand_once_whatever_was_rewritten_in_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: bool
) -> None:
    groups: list[int] = []
    counted: list[int] = []
    stretches = CopyOnWrite.stretches

    def watched(self: CopyOnWrite) -> Iterator[pa.Table]:
        groups.append(0)
        for rows in stretches(self):
            groups[-1] += 1
            counted.append(self._older.nbytes)
            yield rows

    monkeypatch.setattr(CopyOnWrite, "stretches", watched)
    store = WatchedStore(tmp_path / "store")
    stage = Stage(tmp_path, KEYED, store)
    stage.file_writer.limits = RewriteLimits(1500, 1)  # two files are a group

    async def work() -> None:
        async with stage.running():
            stage.write(KEYS)
            await stage.persist()
            for step in range(12):
                stage.write(3 + step)
                if refuse:
                    store.refuse_after = 1 + step % 4
                await stage.persist()
                reader = stage.open(filtered=False)
                while reader.read():
                    pass
                assert sorted(reader.found) == reader.expected
                files = stage.table.state.files.values()
                assert sum(add.rows for add in files) == KEYS

    trio.run(work)
    assert max(groups) > 2, "never in groups"
    assert max(counted) > 0
    assert stage.file_writer.limits.older.nbytes == 0


@pytest.mark.parametrize("room", [1, 1 << 30])
def test_neighbours_are_read_only_where_there_is_room(tmp_path: Path, room: int) -> None:
    stage = Stage(tmp_path, KEYED)

    async def work() -> None:
        async with stage.running():
            stage.file_writer.limits = RewriteLimits(200_000)
            stage.write(KEYS)
            await stage.persist()
            files = len(stage.table.state.files)
            assert files > 4
            # Every file is small compared with this limit: a touched file is rewritten with all
            # others.
            stage.file_writer.limits = RewriteLimits(1 << 30, room)
            stage.write(1)
            await stage.persist()
            assert len(stage.table.state.files) == (files if room == 1 else 1)

    trio.run(work)
    assert stage.file_writer.limits.older.nbytes == 0
