"""The demo's rows: all rows and columns, in time order, each in exactly one writer's share."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ingester.demo.source
from ingester.demo.source import SourceMissing, flights_file, read_flights, share_of


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return read_flights(flights_file())


def test_all_flights_are_there_with_every_column(flights: pa.Table) -> None:
    with zipfile.ZipFile(flights_file()) as archive:
        header = archive.open("flights.csv").readline().decode().strip()
    assert flights.num_rows == 336_776
    assert flights.column_names == header.split(",")


def test_flights_are_in_the_order_of_their_time(flights: pa.Table) -> None:
    at = flights["time_hour"].combine_chunks()
    assert pc.all(pc.greater_equal(at[1:], at[:-1])).as_py()
    assert at.type == pa.timestamp("s", "UTC")


def test_na_is_null_in_numbers_and_in_texts(flights: pa.Table) -> None:
    assert flights["dep_delay"].null_count == 8_255
    assert flights["tailnum"].null_count == 2_512


def test_the_first_rows_are_the_earliest(flights: pa.Table) -> None:
    assert read_flights(flights_file(), 1_000).equals(flights.slice(0, 1_000).combine_chunks())


@pytest.mark.parametrize(("writers", "batch_rows"), [(1, 250), (4, 250), (3, 999)])
def test_each_row_is_in_exactly_one_share(flights: pa.Table, writers: int, batch_rows: int) -> None:
    some = flights.slice(0, 10_001)
    shares = [list(share_of(some, writer, writers, batch_rows)) for writer in range(writers)]
    assert all(batch.num_rows <= batch_rows for share in shares for batch in share)
    in_turn = [
        share[turn] for turn in range(len(shares[0])) for share in shares if turn < len(share)
    ]
    assert pa.Table.from_batches(in_turn).equals(some)


def test_a_file_that_is_no_archive_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "flights.csv.zip"
    broken.write_bytes(b"not a zip")
    with pytest.raises(SourceMissing, match=r"flights\.csv\.zip cannot be read"):
        read_flights(broken)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingester.demo.source, "PACKAGE", "no_such_flights")
    with pytest.raises(SourceMissing, match="no_such_flights"):
        flights_file()
