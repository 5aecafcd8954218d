"""Reads a published table with an engine in every way, and lists what differs."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from persist.publish.format import FormatName
from persist.store import ObjectStore
from tests.open_tables.comparing import difference, own_rows, simple
from tests.open_tables.engines import Engine
from tests.open_tables.limits import Limit, limit_of
from tests.open_tables.publishing import Published
from tests.open_tables.terms import Terms, passing, without_nan


class Checker:
    """Compares engines with our own reader, whose rows it reads once per version."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._own: dict[tuple[str, int], pa.Table] = {}
        self.reads = 0
        """The number of reads that were compared."""
        self.met: set[Limit] = set()
        """The limits that reads ran into."""

    def faults(self, engine: Engine, format: FormatName, table: Published) -> list[str]:
        """What differs in the current version, in every published version, and by each filter."""
        found = []
        for version, terms in self._reads(engine, format, table):
            told = self._fault(engine, format, table, version, terms)
            if told is None:
                continue
            columns = {term.column for term in terms}
            limit = limit_of(engine.name, format, table.kind, columns, told)
            if limit is None:
                found.append(f"{engine.name}, {format}, {table.kind}, {version}, {terms}: {told}")
            else:
                self.met.add(limit)
        return found

    def _reads(
        self, engine: Engine, format: FormatName, table: Published
    ) -> Iterator[tuple[int | None, Terms]]:
        yield None, ()
        last = table.versions[-1]
        for version in table.versions:
            # Iceberg begins without earlier snapshots after a table was defined again.
            if format == "delta" or version.first_schema_id == last.first_schema_id:
                yield version.number, ()
        for terms in table.filters:
            yield None, terms

    def _fault(
        self,
        engine: Engine,
        format: FormatName,
        table: Published,
        version: int | None,
        terms: Terms,
    ) -> str | None:
        self.reads += 1
        try:
            found = engine.rows(table.places[format], version, terms)
        except Exception as exc:
            return f"{type(exc).__name__}: {str(exc)[:600]}"
        wanted = passing(self._wanted(table, version), terms)
        return difference(without_nan(simple(found), terms), without_nan(wanted, terms))

    def _wanted(self, table: Published, number: int | None) -> pa.Table:
        version = next(v for v in reversed(table.versions) if number in (None, v.number))
        key = (table.kind, version.number)
        if key not in self._own:
            self._own[key] = own_rows(self._store, table.table, version)
        return self._own[key]
