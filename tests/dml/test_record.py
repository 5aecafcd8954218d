"""Encoded log records decode to the same values; other bytes are refused as damaged."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.dml.control_records import decode_origins, encode_origins
from ingester.dml.operation import Part
from ingester.dml.record import (
    DamagedRecord,
    LoggedSchema,
    TableRows,
    checkpoint_of,
    decode_operation,
    decode_schema,
    encode_operation,
    encode_schema,
    table_rows,
)
from ingester.origins.checkpoint_state import SharedBytes, SourceCheckpoint
from persist.partitioning import PartitionedRows

SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "s": pa.string(),
        "l": pa.list_(pa.struct([("x", pa.float64())])),
        "b": pa.bool_(),
    }
)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
            "s": st.one_of(st.none(), st.text(max_size=5)),
            "l": st.one_of(
                st.none(), st.lists(st.fixed_dictionaries({"x": st.just(0.5)}), max_size=3)
            ),
            "b": st.one_of(st.none(), st.booleans()),
        }
    ),
    max_size=10,
)
values = st.tuples(st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=5)))
parts = st.lists(st.tuples(values, rows), max_size=4)
names = st.text(min_size=1, max_size=10)


def _part(value: tuple[object, ...], found: list[dict[str, object]]) -> Part:
    batch = pa.RecordBatch.from_pylist(found, SCHEMA)
    return Part(value, batch, batch.nbytes)  # type: ignore[arg-type]


def _rows(schema: LoggedSchema, spec_id: int, parts_: list[Part]) -> TableRows:
    ordered = PartitionedRows.joined([(part.values, part.batch) for part in parts_], SCHEMA)
    return table_rows(schema, spec_id, ordered)


def _payload(buffers: list[pa.Buffer | bytes]) -> pa.Buffer:
    return pa.py_buffer(b"".join(bytes(buffer) for buffer in buffers))


@given(
    parts,
    names,
    names,
    st.one_of(st.none(), st.tuples(names, st.integers(0, 2**63 - 1))),
    st.one_of(
        st.none(),
        st.builds(
            SourceCheckpoint,
            names,
            st.one_of(st.none(), st.binary(max_size=9)),
            st.one_of(st.none(), st.binary(max_size=9).map(SharedBytes.of)),
            st.one_of(st.none(), st.just("2026-11-21T12:00:00.000+00:00")),
        ),
    ),
    st.integers(0, 2**31),
)
def test_an_operation_comes_back_whole(
    sent: list[tuple[tuple[object, ...], list[dict[str, object]]]],
    namespace: str,
    table: str,
    origin: tuple[str, int] | None,
    checkpoint: SourceCheckpoint | None,
    schema_number: int,
) -> None:
    encoded = [_part(*each) for each in sent]
    payload = _payload(
        encode_operation(
            _rows(LoggedSchema.of(schema_number, (namespace, table), SCHEMA), 3, encoded),
            origin=origin,
            checkpoint=checkpoint,
        )
    )
    found = decode_operation(payload, {schema_number: SCHEMA})
    header = found.header
    assert (header.namespace, header.table, header.spec_id) == (namespace, table, 3)
    assert (header.origin, header.origin_sequence) == (origin or (None, None))
    shared = checkpoint.shared if checkpoint else None
    assert checkpoint_of(header, {} if shared is None else {shared.id: shared}) == checkpoint
    if shared is not None:
        with pytest.raises(DamagedRecord, match=f"refers to shared state {shared.id}"):
            checkpoint_of(header, {})
    assert [(repr(p.values), p.batch) for p in found.parts] == [
        (repr(p.values), p.batch) for p in encoded
    ]
    assert found.rows == sum(len(each) for _, each in sent)
    for part in found.parts:
        part.batch.validate(full=True)


_PARTS = [
    _part(("a",), [{"i": 1, "s": "x", "l": [{"x": 1.0}], "b": True}] * 3),
    _part((None,), [{"i": None, "s": None, "l": None, "b": None}]),
]
EXAMPLE = _payload(
    encode_operation(
        _rows(LoggedSchema.of(1, ("n", "t"), SCHEMA), 1, _PARTS),
        origin=("o", 7),
    )
).to_pybytes()


@given(st.integers(0, len(EXAMPLE) - 1))
def test_a_record_cut_anywhere_is_damaged(length: int) -> None:
    with pytest.raises(DamagedRecord):
        decode_operation(pa.py_buffer(EXAMPLE[:length]), {1: SCHEMA})


@given(st.integers(0, len(EXAMPLE) - 1), st.integers(1, 255))
def test_a_flipped_byte_gives_damage_or_a_record_and_nothing_else(at: int, flip: int) -> None:
    broken = bytearray(EXAMPLE)
    broken[at] ^= flip
    try:
        found = decode_operation(pa.py_buffer(bytes(broken)), {1: SCHEMA})
    except DamagedRecord:
        return
    # The log's checksums detect wrong bytes; the decoder only has to fail cleanly.
    assert found.header.spec_id is not None


def test_an_operation_of_a_schema_that_no_record_has_is_damaged() -> None:
    with pytest.raises(DamagedRecord, match="schema number 1"):
        decode_operation(pa.py_buffer(EXAMPLE), {2: SCHEMA})


def test_an_operation_of_another_schema_is_damaged() -> None:
    with pytest.raises(DamagedRecord):
        decode_operation(pa.py_buffer(EXAMPLE), {1: SCHEMA.append(pa.field("more", pa.string()))})


def test_a_schema_comes_back_without_metadata() -> None:
    record, schema = decode_schema(
        pa.py_buffer(encode_schema(5, ("n", "t"), SCHEMA.with_metadata({"a": "b"})))
    )
    assert (record.schema_number, record.namespace, record.table) == (5, "n", "t")
    assert schema.equals(SCHEMA, check_metadata=True)


@given(st.lists(st.tuples(names, names, names, st.integers(0, 2**63 - 1)), max_size=5))
def test_origins_come_back(carried: list[tuple[str, str, str, int]]) -> None:
    assert decode_origins(pa.py_buffer(encode_origins(carried))) == carried


@given(st.binary(max_size=60))
def test_rubbish_is_damaged(rubbish: bytes) -> None:
    payload = pa.py_buffer(rubbish)
    with pytest.raises(DamagedRecord):
        decode_operation(payload, {1: SCHEMA})
    with pytest.raises(DamagedRecord):
        decode_schema(payload)
