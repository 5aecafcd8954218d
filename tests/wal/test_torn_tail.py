"""A log cut or flipped at any byte replays a prefix; any damage but a torn tail is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wal.bytes_source import BytesSource
from tests.wal.driving import Answers, operation, payloads, recovered_records, running
from tests.wal.killed_log import WRITTEN, ends, folder_with, killed_log, recover, recover_or_refuse
from wal import LogDamaged, LogSettings, LogTooNew
from wal.format import SEGMENT_HEADER_BYTES, segment_name
from wal.scan import scan


@given(st.integers(0, ends()[-1]))
def test_a_log_cut_at_any_byte_replays_exactly_the_records_before_the_cut(cut: int) -> None:
    with folder_with(_1=killed_log()[:cut]) as folder:
        whole = sum(end <= cut for end in ends())
        # A file may lack the payloads' padding; a record never does.
        assert recover(folder) in (WRITTEN[:whole], WRITTEN[: whole + 1])
        again = recover(folder)
        assert again == recover(folder)


@given(st.integers(0, ends()[-1] * 8 - 1))
def test_a_flipped_bit_is_damage_unless_it_hits_the_last_group(bit: int) -> None:
    data = bytearray(killed_log())
    data[bit // 8] ^= 1 << bit % 8
    with folder_with(_1=bytes(data)) as folder:
        outcome = recover_or_refuse(folder)
        if isinstance(outcome, LogDamaged | LogTooNew):
            assert outcome.file == folder / segment_name(1)
            assert outcome.offset <= bit // 8
            assert (folder / segment_name(1)).read_bytes() == data
        else:
            # Padding has no checksum and is not read; damage to the last group looks like a torn
            # tail.
            hit = next(i for i, end in enumerate(ends()) if bit // 8 < end)
            in_padding = bit // 8 >= ends()[hit] - (-len(WRITTEN[hit]) % 8)
            assert outcome == (WRITTEN if in_padding else WRITTEN[:-1])
            assert in_padding or hit == len(WRITTEN) - 1


@given(st.integers(0, len(WRITTEN) - 2), st.integers(0, 2**32), st.binary(min_size=8, max_size=64))
def test_overwritten_bytes_before_the_last_group_are_never_skipped(
    record: int, at: int, garbage: bytes
) -> None:
    start = ends()[record - 1] if record else SEGMENT_HEADER_BYTES
    data = bytearray(killed_log())
    at = start + at % 40
    data[at : at + len(garbage)] = garbage
    verdict = scan(BytesSource(data), 1)
    if bytes(data) == killed_log():
        return
    # Garbage that extends into the last group leaves no proof after it, like a torn tail.
    reaches_the_last = at + len(garbage) > ends()[-2]
    assert verdict.state(last=True) in ("damaged", "newer") or reaches_the_last
    assert verdict.fault is not None
    assert start <= verdict.fault.offset <= at + len(garbage)


def test_a_torn_tail_is_cut_counted_and_kept(tmp_path: Path) -> None:
    data = bytearray(killed_log())
    data[ends()[-1] + 3 : ends()[-1] + 9] = b"torn!!"
    (tmp_path / segment_name(1)).write_bytes(data)

    async def read() -> None:
        recovered, records = await recovered_records(tmp_path)
        assert payloads(records) == WRITTEN
        assert (recovered.torn_segments, recovered.torn_bytes) == (1, 9)
        assert recovered.torn_files == (segment_name(1) + ".torn",)
        assert (tmp_path / recovered.torn_files[0]).read_bytes() == b"\0\0\0torn!!"
        recovered, records = await recovered_records(tmp_path)
        assert payloads(records) == WRITTEN
        assert (recovered.torn_segments, recovered.torn_bytes) == (0, 0)

    trio.run(read)


def test_zeros_before_data_of_the_same_group_are_torn_and_of_a_later_one_damage() -> None:
    async def write(folder: Path, *, together: bool) -> None:
        async with running(folder, clean=False) as state:
            if together:
                # Entries that arrive while the first is being written form the next group.
                await state.answers.write(state.log, b"first", b"a" * 600, b"b" * 600)
            else:
                await state.answers.write(state.log, b"first")
                await state.answers.write(state.log, b"a" * 600)
                await state.answers.write(state.log, b"b" * 600)

    def lose_the_beginning_of_the_second(folder: Path) -> None:
        with (folder / segment_name(1)).open("r+b") as file:
            file.seek(SEGMENT_HEADER_BYTES + 48)
            file.write(bytes(512))

    with folder_with() as folder:
        trio.run(lambda: write(folder, together=True))
        lose_the_beginning_of_the_second(folder)
        assert recover(folder) == [b"first"]
    with folder_with() as folder:
        trio.run(lambda: write(folder, together=False))
        lose_the_beginning_of_the_second(folder)
        with pytest.raises(LogDamaged, match="data at"):
            recover(folder)


def test_a_sealed_segment_has_no_torn_tail(tmp_path: Path) -> None:
    async def write() -> None:
        async with running(tmp_path) as state:
            await state.answers.write(state.log, b"only")

    trio.run(write)
    file = tmp_path / segment_name(1)
    data = bytearray(file.read_bytes())
    data[SEGMENT_HEADER_BYTES + 41] ^= 1
    file.write_bytes(data)
    with pytest.raises(LogDamaged, match="payload CRC-32C") as caught:
        recover(tmp_path)
    assert caught.value.offset == SEGMENT_HEADER_BYTES
    assert caught.value.help == f"ingester wal repair {tmp_path}"


@settings(max_examples=25)
@given(st.binary(max_size=2000), st.integers(0, 4000))
def test_a_payload_that_contains_a_log_is_not_parsed_as_one(junk: bytes, cut: int) -> None:
    inner = killed_log()[: ends()[5]]

    async def write(folder: Path) -> None:
        async with running(folder, LogSettings(segment_bytes=1 << 14), clean=False) as state:
            # One group after the junk; its second record contains records of a segment with the
            # same number.
            answers = Answers()
            entries = [operation(junk), operation(b"x" * 500), operation(inner)]
            answers.append(state.log, *entries)
            await answers.wait(*entries)

    with folder_with() as folder:
        trio.run(lambda: write(folder))
        at = SEGMENT_HEADER_BYTES + 40 + -(-len(junk) // 8) * 8
        with (folder / segment_name(1)).open("r+b") as file:
            file.seek(at + cut % 500)
            file.write(b"\xff")
        assert recover(folder) == [junk]
