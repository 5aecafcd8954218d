"""A reader gets each row of its snapshot once while buffers are frozen, flushed or spilled."""

from __future__ import annotations

import datetime as dt
import tempfile
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import ingester.flush.file_writer
from ingester.buffer import BufferHandle
from tests.drivers.stage import (
    AS_THEY_CAME,
    KEYED,
    PARTITIONED,
    PARTITIONS,
    SORTED,
    Reader,
    Stage,
)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 14)),
        st.tuples(st.just("open"), st.booleans()),
        st.tuples(st.just("read"), st.integers(0, 5)),
        st.tuples(st.just("persist"), st.just(0)),
        st.tuples(st.just("read"), st.integers(0, 5)),
        st.tuples(st.just("leave"), st.integers(0, 5)),
    ),
    min_size=10,
    max_size=40,
)


async def _play(kind: str, script: list[tuple[str, int]], folder: Path) -> list[BufferHandle]:
    stage = Stage(folder, kind)
    readers: list[Reader] = []
    async with stage.running():
        for step, number in script:
            if step == "write":
                stage.write(number)
            elif step == "open":
                readers.append(stage.open(bool(number)))
            elif step == "persist":
                await stage.persist()
            elif readers and step == "read":
                readers[number % len(readers)].read()
            elif readers:
                readers.pop(number % len(readers)).snapshot.close()
        for reader in readers:
            while reader.read():
                pass
            assert sorted(reader.found) == reader.expected
            reader.snapshot.close()
    return stage.spilled


@pytest.mark.parametrize("enlarged", [False, True])
@pytest.mark.parametrize("kind", [SORTED, PARTITIONED, AS_THEY_CAME, KEYED])
def test_a_reader_gets_its_snapshot_whatever_happens_to_its_buffers(
    kind: str, enlarged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if enlarged:
        monkeypatch.setattr(ingester.flush.file_writer, "MANY_CHUNKS", 1)
        monkeypatch.setattr(ingester.flush.file_writer, "CHUNK_BYTES", 1_500_000)

    @given(steps)
    @settings(max_examples=15 if enlarged else 50, deadline=dt.timedelta(seconds=30))
    def play(script: list[tuple[str, int]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            trio.run(_play, kind, script, Path(folder))

    play()


MIDDLE = [("write", 14), ("open", 0), ("read", 0), ("write", 3), ("persist", 0), ("write", 2)]


@pytest.mark.parametrize(
    ("kind", "spills"), [(SORTED, 1), (PARTITIONED, PARTITIONS), (AS_THEY_CAME, 0), (KEYED, 1)]
)
def test_only_what_files_cannot_tell_is_spilled(kind: str, spills: int, tmp_path: Path) -> None:
    spilled = trio.run(_play, kind, MIDDLE, tmp_path)
    assert len(spilled) == spills


def test_a_released_buffer_keeps_no_order_of_arrival_in_memory(tmp_path: Path) -> None:
    for handle in trio.run(_play, SORTED, MIDDLE, tmp_path):
        assert handle.files is not None
        assert handle.files.nbytes == 0


def test_nothing_is_spilled_for_a_reader_that_has_not_begun(tmp_path: Path) -> None:
    script = [("write", 14), ("open", 0), ("persist", 0), ("write", 2), ("persist", 0)]
    assert trio.run(_play, SORTED, script, tmp_path) == []
