"""The faster validation gives the same verdict as Arrow's full validation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingester.schema.normalise import validate_fully

_ROWS = 2000
_DATA = b"plain text of some length, cut anywhere" * 60


def _strings(
    ends: np.ndarray, data: bytes, *, large: bool, missing: np.ndarray | None = None, nulls: int = 0
) -> pa.Array:
    """A column of these buffers, as a message may contain it: not validated."""
    bits = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(
        pa.large_string() if large else pa.string(),
        len(ends) - 1,
        [bits, pa.py_buffer(ends.astype(np.int64 if large else np.int32)), pa.py_buffer(data)],
        null_count=nulls,
    )


def _verdict(check: Callable[[], object]) -> str | None:
    try:
        check()
    except pa.ArrowInvalid as exc:
        return str(exc)
    return None


def _batch(column: pa.Array) -> pa.RecordBatch:
    numbers = pa.array(np.arange(len(column)))
    return pa.RecordBatch.from_arrays([numbers, column], names=["number", "text"])


@given(
    changed_end=st.none() | st.tuples(st.integers(0, _ROWS), st.integers(-5, len(_DATA) + 5)),
    changed_byte=st.none() | st.tuples(st.integers(0, len(_DATA) - 1), st.integers(0, 255)),
    large=st.booleans(),
    nulls=st.none() | st.tuples(st.sets(st.integers(0, _ROWS - 1)), st.integers(-1, 3)),
    cut=st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
@example(changed_end=(0, -1), changed_byte=None, large=False, nulls=None, cut=(0, 0))
def test_any_change_of_a_string_column_is_judged_as_arrow_judges_it(
    changed_end: tuple[int, int] | None,
    changed_byte: tuple[int, int] | None,
    large: bool,
    nulls: tuple[set[int], int] | None,
    cut: tuple[int, int],
) -> None:
    rows = _ROWS + 80
    ends = np.minimum(np.arange(rows + 1) * 2, len(_DATA))
    data = bytearray(_DATA)
    if changed_end is not None:
        ends[changed_end[0]] = changed_end[1]
    if changed_byte is not None:
        data[changed_byte[0]] = changed_byte[1]
    missing = None
    if nulls is not None:
        missing = np.zeros(rows + 1, bool)
        missing[[1 + row for row in nulls[0]]] = True
    count = 0 if nulls is None else max(0, len(nulls[0]) + nulls[1])
    # After one more row, as pyarrow makes no column whose very first offset is bad.
    behind = np.concatenate([[0], ends])
    column = _strings(behind, bytes(data), large=large, missing=missing, nulls=count)
    batch = _batch(column).slice(1 + cut[0], rows - sum(cut))
    said = _verdict(lambda: validate_fully([batch]))
    assert said == _verdict(lambda: batch.validate(full=True))
    # It is refused together with a good batch as well.
    good = _batch(_strings(ends * 0, b"", large=large))
    alone = said is None
    assert (_verdict(lambda: validate_fully([good, batch])) is None) == alone


@pytest.mark.parametrize("large", [False, True])
def test_words_in_any_script_are_good_and_half_of_a_character_is_not(large: bool) -> None:
    data = "wörter 語 \N{GRINNING FACE}".encode() * 200
    whole = np.linspace(0, 200, _ROWS + 1).astype(int) * (len(data) // 200)
    validate_fully([_batch(_strings(whole, data, large=large))])
    cut = whole.copy()
    cut[cut == len(data) // 200] = 2  # in the middle of the second character
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        validate_fully([_batch(_strings(cut, data, large=large))])


@pytest.mark.parametrize("large", [False, True])
def test_buffers_may_be_longer_than_they_need_to_be(large: bool) -> None:
    column = _strings(np.arange(_ROWS + 1), b"x" * _ROWS, large=large)
    longer = [
        None,
        *(pa.py_buffer(buffer.to_pybytes() + b"\xff") for buffer in column.buffers()[1:]),
    ]
    batch = _batch(pa.Array.from_buffers(column.type, _ROWS, longer))
    batch.validate(full=True)
    validate_fully([batch])


def test_rows_without_a_column_are_good() -> None:
    rows = pa.table({"number": np.arange(_ROWS)}).select([]).to_batches()
    assert [batch.num_rows for batch in rows] == [_ROWS]
    validate_fully(rows)


def test_what_is_no_text_is_judged_as_arrow_judges_it() -> None:
    wrong = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 7] * _ROWS, pa.int8()), pa.array(["a", "b"]), safe=False
    )
    days = pa.Array.from_buffers(
        pa.date64(), _ROWS, [None, pa.py_buffer(np.full(_ROWS, 1, np.int64))]
    )
    told = pa.Array.from_buffers(
        pa.int64(), _ROWS, [pa.py_buffer(b"\xff" * 250), pa.py_buffer(bytes(8 * _ROWS))], 3
    )
    for column in (wrong, days, told):
        batch = _batch(column)
        expected = _verdict(partial(batch.validate, full=True))
        assert expected is not None
        assert _verdict(partial(validate_fully, [batch])) == expected
    validate_fully([_batch(pa.array(np.zeros(_ROWS)))])
