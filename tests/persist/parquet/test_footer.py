"""The footer of a Parquet file is checked before Arrow reads it."""

from __future__ import annotations

from functools import cache

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.parquet.encode import encode
from persist.parquet.reading import (
    DataFile,
    FileDamaged,
    damage_errors,
    footer_checksum,
    open_checked,
    read_footer,
)

WIDE = 4_000
"""Enough columns for a footer larger than the first read."""


@cache
def written(columns: int = 2) -> tuple[bytes, DataFile]:
    """A file, and its entry in the manifest."""
    table = pa.table({f"c{n}": pa.array(range(50), pa.int64()) for n in range(columns)})
    data = encode([table], {"rows": "50"}, 20)
    return data.to_pybytes(), DataFile("some/file", data.size, footer_checksum(data))


def footer_bytes(data: bytes) -> int:
    """The length of the footer with its frame."""
    return int.from_bytes(data[-8:-4], "little") + 8


@pytest.mark.parametrize("columns", [2, WIDE])
def test_a_valid_footer_is_read(columns: int) -> None:
    data, file = written(columns)
    assert (footer_bytes(data) > 64 << 10) == (columns == WIDE)
    for known in (file, DataFile("some/file")):
        footer = read_footer(pa.BufferReader(data), known)
        assert (footer.num_rows, footer.num_row_groups, footer.num_columns) == (50, 3, columns)
    with open_checked(pa.BufferReader(data), file) as parquet:
        assert parquet.read().num_rows == 50


@given(st.data())
def test_any_changed_byte_of_a_footer_is_found(data: st.DataObject) -> None:
    whole, file = written()
    changed = bytearray(whole)
    changed[-data.draw(st.integers(1, footer_bytes(whole)))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FileDamaged, match="some/file"):
        read_footer(pa.BufferReader(bytes(changed)), file)


@given(st.integers(0, 10_000))
def test_a_file_cut_anywhere_is_found(length: int) -> None:
    whole, file = written()
    cut = whole[: length % len(whole)]
    with pytest.raises(FileDamaged, match="should have"):
        read_footer(pa.BufferReader(cut), file)
    with pytest.raises(FileDamaged, match="some/file"):  # the same without a known size
        read_footer(pa.BufferReader(cut), file._replace(bytes=None))


@pytest.mark.parametrize("claims", [0, 1 << 20, (1 << 32) - 1])
def test_a_footer_that_claims_another_length_is_found_without_a_checksum(claims: int) -> None:
    whole, _ = written()
    changed = whole[:-8] + claims.to_bytes(4, "little") + whole[-4:]
    with pytest.raises(FileDamaged, match="some/file"):
        read_footer(pa.BufferReader(changed), DataFile("some/file", len(changed)))


def test_a_damaged_page_is_found_when_it_is_decoded() -> None:
    whole, file = written()
    changed = bytearray(whole)
    for at in range(40, 60):
        changed[at] ^= 0xFF
    with (
        open_checked(pa.BufferReader(bytes(changed)), file) as parquet,
        pytest.raises(FileDamaged, match="some/file is damaged"),
        damage_errors("some/file"),
    ):
        parquet.read()


def test_an_error_of_the_system_is_not_damage() -> None:
    with pytest.raises(FileNotFoundError), damage_errors("some/file"):
        open("/nowhere/at/all")  # noqa: SIM115
