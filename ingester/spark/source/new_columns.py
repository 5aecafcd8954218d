"""Columns that came to a table after a stream's DataFrame was made.

Law of this file: Spark settles a stream's columns when it is loaded, so a later column has no place
in the rows of that stream. A stream that was not told which columns it has gives all of them, or
stops before the first rows that may have another one. Types of columns never change.
"""

from __future__ import annotations

from collections.abc import Collection

from ingester.spark.errors import StreamUnsuitable
from persist.manifest import Add, Manifest, TableState
from persist.table import read_schema


class NewColumns:
    """Finds the files with columns that a stream would leave out.

    Attributes:
        known: The columns that the stream has; None where it was told which ones it wants.
    """

    def __init__(
        self, manifest: Manifest, state: TableState, known: Collection[str] | None
    ) -> None:
        self._manifest = manifest
        self._state = state
        self._known = None if known is None else frozenset(known)
        self._found: dict[int, tuple[str, ...]] = {}

    def of(self, add: Add) -> tuple[str, ...]:
        """Columns of the file's schema that the stream lacks, in the table's order."""
        if self._known is None:
            return ()
        found = self._found.get(add.schema_id)
        if found is None:
            found = self._found[add.schema_id] = self._look(add.schema_id, self._known)
        return found

    def refuse(self, add: Add) -> None:
        """Return if the stream has all columns of the file.

        Raises:
            StreamUnsuitable: It lacks some; the message names them, and says how to go on.
        """
        found = self.of(add)
        if found:
            names = ", ".join(repr(name) for name in found)
            came = f"column {names} has" if len(found) == 1 else f"columns {names} have"
            raise StreamUnsuitable(
                f"{came} come to table {self._manifest.namespace}/"
                f"{self._manifest.table} since this stream was loaded, which has no place for"
                " what rows have there: it stops before the first of these rows. Load it anew"
                " (spark.readStream, with the same options) and start it with the same checkpoint:"
                " it goes on where it stopped. (A stream with the option columns, or with a schema"
                " of its own, goes on without new columns.)"
            )

    def _look(self, schema_id: int, known: frozenset[str]) -> tuple[str, ...]:
        if schema_id not in self._state.schemas:
            self._state = self._manifest.refresh(self._state)
        schema = read_schema(self._state.schemas[schema_id])
        return tuple(name for name in schema.names if name not in known)
