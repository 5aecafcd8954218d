"""The engines that read published tables: each returns rows as an Arrow table."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from persist.publish.format import FormatName
from tests.open_tables.terms import Terms, polars_expression, pyiceberg_expression, sql


@dataclass(frozen=True, slots=True)
class Place:
    """Where a published table is.

    Attributes:
        url: of the table's folder.
        metadata: of Iceberg's newest metadata file, for engines that do not look for it.
        s3: the server, if the URL is ``s3://``: ``endpoint_url``, ``key``, ``secret``, ``region``.
    """

    format: FormatName
    url: str
    metadata: str = ""
    s3: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The folder as DuckDB and deltalake name it."""
        return self.url.removeprefix("file://")


class Engine(Protocol):
    """One way to read."""

    name: str
    formats: tuple[FormatName, ...]

    def rows(self, place: Place, version: int | None = None, terms: Terms = ()) -> pa.Table:
        """The rows of a version, the newest by default, for which the terms hold."""
        ...


class PyIceberg:
    """pyiceberg's ``StaticTable``."""

    name = "pyiceberg"
    formats: tuple[FormatName, ...] = ("iceberg",)

    def rows(self, place: Place, version: int | None = None, terms: Terms = ()) -> pa.Table:
        table = static_table(place)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scan = table.scan(row_filter=pyiceberg_expression(terms), snapshot_id=version)
            return scan.to_arrow()


def static_table(place: Place) -> Any:
    """The table as pyiceberg opens it without a catalogue."""
    from pyiceberg.table import StaticTable

    options = {
        "s3.endpoint": place.s3.get("endpoint_url", ""),
        "s3.access-key-id": place.s3.get("key", ""),
        "s3.secret-access-key": place.s3.get("secret", ""),
        "s3.region": place.s3.get("region", ""),
    }
    return StaticTable.from_metadata(place.url, options if place.s3 else {})


class PolarsIceberg:
    """Polars' ``scan_iceberg``, by its own reader or by pyiceberg's."""

    formats: tuple[FormatName, ...] = ("iceberg",)

    def __init__(self, reader: str) -> None:
        self.name = f"polars {reader}"
        self._reader = reader

    def rows(self, place: Place, version: int | None = None, terms: Terms = ()) -> pa.Table:
        import polars as pl

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            frame = pl.scan_iceberg(
                static_table(place),
                snapshot_id=version,
                reader_override=self._reader,  # type: ignore[arg-type]
            )
            return frame.filter(polars_expression(terms)).collect().to_arrow()


class PolarsDelta:
    """Polars' ``scan_delta``."""

    name = "polars"
    formats: tuple[FormatName, ...] = ("delta",)

    def rows(self, place: Place, version: int | None = None, terms: Terms = ()) -> pa.Table:
        import polars as pl

        frame = pl.scan_delta(place.path, version=version, storage_options=_object_store(place))
        return frame.filter(polars_expression(terms)).collect().to_arrow()


class DeltaLake:
    """deltalake's own query engine."""

    name = "deltalake"
    formats: tuple[FormatName, ...] = ("delta",)

    def rows(self, place: Place, version: int | None = None, terms: Terms = ()) -> pa.Table:
        from deltalake import DeltaTable, QueryBuilder

        table = DeltaTable(place.path, version=version, storage_options=_object_store(place))
        builder = QueryBuilder().register("t", table)
        query = f"SELECT * FROM t WHERE {sql(terms, 'datafusion')}"
        return pa.table(builder.execute(query).read_all())


class DeltaLakeArrow:
    """deltalake's data set for pyarrow."""

    name = "deltalake pyarrow"
    formats: tuple[FormatName, ...] = ("delta",)

    def rows(self, place: Place, version: int | None = None, terms: Terms = ()) -> pa.Table:
        from deltalake import DeltaTable

        table = DeltaTable(place.path, version=version, storage_options=_object_store(place))
        return table.to_pyarrow_dataset().to_table(filter=_arrow_filter(terms))


def _arrow_filter(terms: Terms) -> Any:
    import pyarrow.dataset as ds

    found: Any = None
    for column, op, value in terms:
        there = ds.field(column)
        one = {
            "null": lambda t, v: t.is_null(),
            "not null": lambda t, v: t.is_valid(),
            "in": lambda t, v: t.isin(v),
            "=": lambda t, v: t == v,
            "!=": lambda t, v: t != v,
            "<": lambda t, v: t < v,
            "<=": lambda t, v: t <= v,
            ">": lambda t, v: t > v,
            ">=": lambda t, v: t >= v,
        }[op](there, value)
        found = one if found is None else found & one
    return found


def _object_store(place: Place) -> dict[str, str] | None:
    """The options of deltalake and Polars."""
    if not place.s3:
        return None
    return {
        "AWS_ENDPOINT_URL": place.s3["endpoint_url"],
        "AWS_ACCESS_KEY_ID": place.s3["key"],
        "AWS_SECRET_ACCESS_KEY": place.s3["secret"],
        "AWS_REGION": place.s3["region"],
        "AWS_ALLOW_HTTP": "true",
    }


IN_PROCESS: tuple[Engine, ...] = (
    PyIceberg(),
    PolarsIceberg("native"),
    PolarsIceberg("pyiceberg"),
    PolarsDelta(),
    DeltaLake(),
    DeltaLakeArrow(),
)
"""The engines of the main environment."""
