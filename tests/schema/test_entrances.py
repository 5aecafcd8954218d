"""Every entrance stores a value exactly, or refuses it by its column: type by entrance."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ingester.cli.exits import CommandFailed
from ingester.cli.input.files import opened
from ingester.cli.input.source import text_options
from ingester.client.cluster.union import _aligned
from ingester.client.errors import InvalidRequest
from ingester.client.fitting import aligned
from ingester.postgres.types import ColumnType, ValueNotKept, arrow_values
from ingester.spark.errors import WriteRefused
from ingester.spark.sink.data_files import table_rows

Entrance = Callable[[Path, str, pa.Array, pa.DataType], pa.Array]


def _file(folder: Path, kind: str, content: str, column: pa.DataType) -> pa.Array:
    path = folder / f"rows.{kind}"
    path.write_text(content)
    options = text_options(None, None, None, False, None)
    with opened(str(path), kind, pa.schema([("v", column)]), options) as file:
        return pa.Table.from_batches(list(file.batches(10)), file.schema)["v"].combine_chunks()


def _csv(folder: Path, text: str, _value: pa.Array, kind: pa.DataType) -> pa.Array:
    return _file(folder, "csv", f"v,w\n{text},1\n", kind)


def _json(folder: Path, text: str, _value: pa.Array, kind: pa.DataType) -> pa.Array:
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    plain = number and text.lstrip("-")[0].isdigit()
    words = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    said = text if plain else json.dumps(words.get(text, text))
    return _file(folder, "jsonl", f'{{"v":{said}}}\n', kind)


def _client(_folder: Path, _text: str, value: pa.Array, kind: pa.DataType) -> pa.Array:
    return aligned(pa.record_batch([value], ["v"]), pa.schema([("v", kind)])).column(0)


def _union(_folder: Path, _text: str, value: pa.Array, kind: pa.DataType) -> pa.Array:
    return _aligned(pa.record_batch([value], ["v"]), pa.schema([("v", kind)])).column(0)


def _spark(_folder: Path, _text: str, value: pa.Array, kind: pa.DataType) -> pa.Array:
    return table_rows(pa.record_batch([value], ["v"]), pa.schema([("v", kind)])).column(0)


def _postgres(_folder: Path, text: str, _value: pa.Array, kind: pa.DataType) -> pa.Array:
    words = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return arrow_values(ColumnType(kind), [words.get(text, text)], "v")


TEXTS = [_csv, _json, _postgres]
VALUES = [_client, _union, _spark]
REFUSALS = (CommandFailed, InvalidRequest, WriteRefused, ValueNotKept)

WHOLE = pa.decimal128(38, 0)
UNFIT = [
    (str(2**256 - 1), None, WHOLE),
    (str(2**128 + 5), None, WHOLE),
    (str(10**38), pa.array([Decimal(10**38)], pa.decimal256(40, 0)), WHOLE),
    (str(341 * 10**18), pa.array([Decimal(341 * 10**18)]), pa.decimal128(38, 18)),
    ("35", pa.array([35]), pa.decimal128(38, 37)),
    ("35", pa.array([Decimal(35)]), pa.decimal128(38, 37)),
    ("-35", pa.array([-35], pa.int8()), pa.decimal128(38, 37)),
    (str(2**53 + 1), pa.array([2**53 + 1]), pa.float64()),
    (str(-(2**53) - 1), pa.array([Decimal(-(2**53) - 1)]), pa.float64()),
    (str(2**24 + 1), pa.array([2**24 + 1]), pa.float32()),
    ("1e39", pa.array([1e39]), pa.float32()),
    ("1e400", None, pa.float64()),
    ("128", pa.array([128]), pa.int8()),
    ("-1", pa.array([-1]), pa.uint64()),
    (str(2**63), pa.array([2**63], pa.uint64()), pa.int64()),
]


@pytest.mark.parametrize(
    ("entrance", "text", "value", "kind"),
    [
        (entrance, *case)
        for case in UNFIT
        for entrance in (TEXTS if case[1] is None else [*TEXTS, *VALUES])
    ],
)
def test_a_value_that_does_not_fit_is_refused_at_every_entrance(
    tmp_path: Path, entrance: Entrance, text: str, value: pa.Array, kind: pa.DataType
) -> None:
    with pytest.raises(REFUSALS, match=r"\bv\b"):
        entrance(tmp_path, text, value, kind)


FITTING: list[tuple[str, Any, pa.DataType]] = [
    *(
        (str(n), n, kind)
        for bits in (8, 16, 32, 64)
        for kind in (getattr(pa, f"int{bits}")(),)
        for n in (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0)
    ),
    (str(2**64 - 1), 2**64 - 1, pa.uint64()),
    ("9" * 38, Decimal("9" * 38), WHOLE),
    ("-" + "9" * 38, Decimal("-" + "9" * 38), WHOLE),
    ("-0." + "9" * 38, Decimal("-0." + "9" * 38), pa.decimal128(38, 38)),
    ("0.00999", Decimal("0.00999"), pa.decimal128(5, 5)),
    ("nan", math.nan, pa.float64()),
    ("inf", math.inf, pa.float32()),
    ("-inf", -math.inf, pa.float64()),
    ("-0.0", -0.0, pa.float64()),
    ("0.1", 0.1, pa.float64()),
    (str(2**53), 2.0**53, pa.float64()),
    ("5e-324", 5e-324, pa.float64()),
]


@pytest.mark.parametrize(("text", "value", "kind"), FITTING, ids=str)
@pytest.mark.parametrize("entrance", [*TEXTS, *VALUES])
def test_an_extreme_that_fits_is_stored_exactly_at_every_entrance(
    tmp_path: Path, entrance: Entrance, text: str, value: Any, kind: pa.DataType
) -> None:
    (found,) = entrance(tmp_path, text, pa.array([value], kind), kind).to_pylist()
    if isinstance(value, float):
        assert math.isnan(found) if math.isnan(value) else _bits(found) == _bits(value)
    else:
        assert found == value


def _bits(value: float) -> bytes:
    return struct.pack("<d", value)


@pytest.mark.parametrize(
    ("text", "count", "kind"),
    [
        ("0001-01-01", -719_162, pa.date32()),
        ("9999-12-31", 2_932_896, pa.date32()),
        ("0001-01-01 00:00:00", -62_135_596_800_000_000, pa.timestamp("us")),
        ("9999-12-31 23:59:59.999999", 253_402_300_799_999_999, pa.timestamp("us")),
    ],
)
@pytest.mark.parametrize("entrance", TEXTS)
def test_the_first_and_the_last_year_are_read_exactly(
    tmp_path: Path, entrance: Entrance, text: str, count: int, kind: pa.DataType
) -> None:
    found = entrance(tmp_path, text, pa.array([]), kind)
    plain = pa.int32() if kind == pa.date32() else pa.int64()
    assert found.view(plain).to_pylist() == [count]
