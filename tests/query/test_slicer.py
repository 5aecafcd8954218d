"""Parts sliced from larger batches: every matching row once, bounded part size, little memory."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.buffer import BufferedRows
from ingester.query.parts import PART_BYTES, VIEW_BYTES, Slicer, Views, sent_bytes
from ingester.query.ticket import predicate_of
from persist.predicate.predicate import Predicate

SCHEMA = pa.schema({"n": pa.int64(), "text": pa.string()})


def _batch(sizes: list[int]) -> pa.RecordBatch:
    texts = ["x" * size for size in sizes]
    return pa.record_batch([pa.array(range(len(sizes)), pa.int64()), texts], schema=SCHEMA)


def _slicer(views: Views, wanted: Any = None, columns: tuple[str, ...] = ("n", "text")) -> Slicer:
    predicate = predicate_of(wanted, SCHEMA)
    looked_at = pa.schema([SCHEMA.field(name) for name in predicate.columns])
    return Slicer(pa.schema([SCHEMA.field(c) for c in columns]), looked_at, predicate, views)


def _all(cutter: Slicer, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    found, row = [], 0
    while row < batch.num_rows:
        rows, part = cutter.part(batch, row, batch.num_rows)
        assert rows > 0
        row += rows
        assert not part.batch.num_rows or part.nbytes == sent_bytes(part.batch)
        assert part.batch.num_rows <= 1 or sent_bytes(part.batch) <= PART_BYTES
        found.append(part.batch)
    cutter.let_go()
    return found


sizes = st.lists(
    st.one_of(st.integers(0, 50), st.integers(0, 3000), st.just(PART_BYTES * 2)),
    min_size=1,
    max_size=300,
).map(lambda found: found * 20)


@given(sizes, st.sampled_from([0, PART_BYTES, 1 << 40]), st.integers(1, 40))
def test_every_matching_row_comes_once_and_in_order(
    found: list[int], view_bytes: int, every: int
) -> None:
    batch, views = _batch(found), Views(view_bytes)
    numbers = [n for part in _all(_slicer(views), batch) for n in part["n"].to_pylist()]
    assert numbers == list(range(len(found)))
    chosen = list(range(0, len(found), every))
    cutter = _slicer(views, [[["n", "in", chosen]]], ("text", "n"))
    parts = _all(cutter, batch)
    assert [n for part in parts for n in part["n"].to_pylist()] == chosen
    assert all(part.schema.names == ["text", "n"] for part in parts)
    assert views.nbytes == 0


def test_where_few_rows_match_more_are_looked_at_for_a_part() -> None:
    batch = _batch([100] * 50_000)
    few = _all(_slicer(Views(), [[["n", "in", list(range(0, 50_000, 100))]]]), batch)
    everything = _all(_slicer(Views()), batch)
    assert sum(part.num_rows for part in few) == 500
    assert len(few) < len(everything) / 4


@given(sizes, st.integers(1, 40), st.integers(1, 400))
def test_what_lies_in_many_chunks_is_found_as_in_one(
    found: list[int], each: int, every: int
) -> None:
    batch, rows = _batch(found), BufferedRows()
    for seq, start in enumerate(range(0, len(found), each)):
        part = batch.slice(start, each)
        rows.append(part, seq=seq, nbytes=sent_bytes(part), schema_number=0)
    chosen = list(range(0, len(found), every))
    cutter, row, numbers = _slicer(Views(), [[["n", "in", chosen]]], ("text", "n")), 0, list[int]()
    while row < len(found):
        looked_at, piece = cutter.buffered(rows.chunks(), row, len(found))
        assert looked_at > 0
        assert piece.batch.num_rows <= 1 or sent_bytes(piece.batch) <= PART_BYTES
        row += looked_at
        numbers += piece.batch["n"].to_pylist() if piece.batch.num_rows else []
    assert numbers == chosen


def test_a_buffer_of_many_chunks_where_nothing_matches_is_looked_at_in_few_pieces() -> None:
    batch, rows = _batch([100] * 50_000), BufferedRows()
    for seq in range(500):
        rows.append(batch.slice(100 * seq, 100), seq=seq, nbytes=12_000, schema_number=0)
    cutter, row, looks = _slicer(Views(), [[["n", "<", 0]]]), 0, 0
    while row < 50_000:
        row, looks = row + cutter.buffered(rows.chunks(), row, 50_000)[0], looks + 1
    assert looks <= 4  # 6 MB; one look for each part would make 24


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.list_(pa.string()), pa.bool_()])
def test_parts_of_many_columns_are_no_larger_than_others(kind: pa.DataType) -> None:
    names = ["n", *(f"c{number}" for number in range(1_500))]
    schema = pa.schema([("n", pa.int64()), *((name, kind) for name in names[1:])])
    value = {pa.int64(): 1, pa.string(): "x", pa.bool_(): True}.get(kind, ["x"])
    columns = [pa.array([value] * 8, kind)] * 1_500
    rows = BufferedRows()
    for seq in range(40):
        batch = pa.record_batch([pa.array(range(8 * seq, 8 * seq + 8)), *columns], schema=schema)
        rows.append(batch, seq=seq, nbytes=batch.nbytes, schema_number=0)
    predicate = predicate_of([[["n", ">=", 90]]], schema)
    cutter = Slicer(schema, pa.schema([schema.field("n")]), predicate, Views())
    found, row = list[int](), 0
    while row < 320:
        looked_at, piece = cutter.buffered(rows.chunks(), row, 320)
        assert piece.batch.num_rows <= 1 or sent_bytes(piece.batch) <= PART_BYTES
        assert not piece.batch.num_rows or piece.nbytes == sent_bytes(piece.batch)
        found, row = found + piece.batch["n"].to_pylist(), row + looked_at
    assert found == list(range(90, 320))


@pytest.mark.parametrize("wanted", [[["large", "=", True]], [["large", "=", False]], []])
def test_each_row_is_looked_at_about_once_whichever_rows_match(wanted: Any) -> None:
    schema = pa.schema({"large": pa.bool_(), "text": pa.string()})
    large = [n % 16 == 0 for n in range(64)]
    texts = ["x" * (4_000 if each else 5) for each in large]
    rows = BufferedRows()
    for seq in range(400):
        batch = pa.record_batch([large, texts], schema=schema)
        rows.append(batch, seq=seq, nbytes=sent_bytes(batch), schema_number=0)
    compared = 0

    class Counted(Predicate):
        def mask(self, batch: pa.RecordBatch, *args: Any) -> pa.Array | None:
            nonlocal compared
            compared += batch.num_rows
            return super().mask(batch, *args)

    everything = wanted or [["large", "in", [True, False]]]
    predicate = Counted(predicate_of([everything], schema).conjunctions)
    cutter, row, found = Slicer(schema, schema.remove(1), predicate, Views()), 0, 0
    while row < rows.rows:
        looked_at, piece = cutter.buffered(rows.chunks(), row, rows.rows)
        row, found = row + looked_at, found + piece.batch.num_rows
    every = {True: 4, False: 60}.get(wanted[0][2], 64) if wanted else 64
    assert found == 400 * every
    assert compared < 1.3 * rows.rows


def test_what_is_joined_to_be_looked_at_is_bounded_for_all_answers_together() -> None:
    batch, rows, views = _batch([100] * 50_000), BufferedRows(), Views()
    for seq in range(500):
        rows.append(batch.slice(100 * seq, 100), seq=seq, nbytes=12_000, schema_number=0)
    largest = 0

    def nested(depth: int) -> None:
        """Begin another answer in the middle of a look."""
        nonlocal largest
        looks = 0

        def pause() -> None:
            nonlocal largest, looks
            largest, looks = max(largest, views.nbytes), looks + 1
            if looks == 2 and depth:
                nested(depth - 1)

        predicate = predicate_of([[["n", "<", 0]]], SCHEMA)
        cutter = Slicer(SCHEMA, pa.schema([SCHEMA.field("n")]), predicate, views, pause)
        row = 0
        while row < 50_000:
            row += cutter.buffered(rows.chunks(), row, 50_000)[0]

    nested(8)
    assert PART_BYTES < largest <= VIEW_BYTES
    assert views.nbytes == 0


def test_views_are_sent_while_all_of_them_together_keep_little() -> None:
    batch = _batch([1000] * 2000)
    inside = range(
        batch["text"].buffers()[2].address, batch["text"].buffers()[2].address + 2_000_000
    )

    def is_view(part: pa.RecordBatch) -> bool:
        return part["text"].buffers()[2].address in inside

    nbytes = sent_bytes(batch)
    views = Views(nbytes + 1)
    first, second = _slicer(views), _slicer(views)
    assert is_view(first.part(batch, 0, 2000)[1].batch)
    assert views.nbytes == nbytes
    stalled = second.part(batch, 0, 2000)[1].batch
    assert not is_view(stalled), "there is no room for another one"
    assert stalled.get_total_buffer_size() <= PART_BYTES + 1024
    rows, part = first.part(batch, 500, 2000)
    assert is_view(part.batch), "the one before it is sent"
    assert part.batch["n"][0].as_py() == 500
    assert rows == part.batch.num_rows
    first.let_go()
    first.let_go()
    assert views.nbytes == 0
    assert is_view(second.part(batch, 0, 2000)[1].batch)


@pytest.mark.parametrize("own", [True, False])
def test_what_is_not_its_own_is_copied_whole(own: bool) -> None:
    batch = _batch([10] * 100)
    part = _slicer(Views()).whole(batch, own=own)
    assert part.batch.equals(batch)
    same = part.batch["text"].buffers()[2].address == batch["text"].buffers()[2].address
    assert same == own


WIDE = pa.schema(
    [*SCHEMA, *(pa.field(f"a{n}", pa.int64()) for n in range(300)), ("b", pa.string())]
)


@given(sizes, st.integers(1, 40))
def test_parts_with_absent_columns_are_no_larger_than_others(found: list[int], every: int) -> None:
    batch, views = _batch(found), Views()
    for wanted in (None, [[["n", "in", list(range(0, len(found), every))]]]):
        predicate = predicate_of(wanted, WIDE)
        cutter = Slicer(
            WIDE, pa.schema([WIDE.field(c) for c in predicate.columns]), predicate, views
        )
        parts = _all(cutter, batch)
        assert all(part.schema == WIDE for part in parts if part.num_rows)
        assert [n for part in parts for n in part["n"].to_pylist()] == list(
            range(0, len(found), every if wanted else 1)
        )
        assert all(part["a7"].null_count == part.num_rows for part in parts if part.num_rows)


def test_absent_columns_are_looked_at_as_nulls() -> None:
    batch = _batch([10] * 1_000)
    filters: list[tuple[Any, int]] = [
        ([[["a7", "is null"]]], 1_000),
        ([[["a7", ">", 3]], [["b", "=", "x"]]], 0),
        ([[["a7", "is null"], ["n", "<", 10]]], 10),
    ]
    for wanted, rows in filters:
        predicate = predicate_of(wanted, WIDE)
        looked_at = pa.schema([WIDE.field(c) for c in predicate.columns])
        parts = _all(Slicer(WIDE, looked_at, predicate, Views()), batch)
        assert sum(part.num_rows for part in parts) == rows
