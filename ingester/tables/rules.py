"""Rules for creating and widening tables, and limits on their number.

Pure checks. An existing table can be opened whatever the limits say; only new tables and columns
are refused, before anything is committed (tests/tables).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ingester.config.settings import LimitsSettings
from ingester.errors import BadRequest, limit_facts
from ingester.schema.limits import ShapeLimits, check_columns
from persist.table import TableKey

DEFAULTS = LimitsSettings()


@dataclass(frozen=True, slots=True)
class TableRules:
    """The rules for one daemon's tables."""

    auto_create: bool = True
    """Whether a first write creates its table."""
    limits: LimitsSettings = DEFAULTS
    endpoint: Callable[[], str] = lambda: ""
    """Returns this daemon's client endpoint, once known."""

    @property
    def shapes(self) -> ShapeLimits:
        return shapes_of(self.limits)

    def check_new(self, key: TableKey, columns: int, there: Collection[TableKey]) -> None:
        """Raise :class:`BadRequest` if a table cannot be created beside those in ``there``.

        Args:
            there: the daemon's open tables.
        """
        if key in there:
            return
        check_columns(key, 0, columns, self.shapes)
        _check_count("tables", key, len(there), self.limits.tables)
        most = self.limits.namespaces
        if len(there) >= most:  # fewer tables cannot have that many namespaces
            namespaces = {namespace for namespace, _ in there}
            if key[0] not in namespaces:
                _check_count("namespaces", key, len(namespaces), most)


def shapes_of(limits: LimitsSettings) -> ShapeLimits:
    """Return the limits on schemas."""
    return ShapeLimits(
        columns=limits.columns,
        dictionaries=limits.dictionaries,
        nesting=limits.nesting,
        name_bytes=limits.name_bytes,
        metadata_bytes=limits.metadata_bytes,
    )


def _check_count(limit: str, key: TableKey, found: int, most: int) -> None:
    if found >= most:
        raise BadRequest(
            f"table {key[0]}/{key[1]} cannot be created: the daemon has {found} {limit} open;"
            f" limits.{limit} is {most}",
            details=limit_facts(f"limits.{limit}", most, found),
        )
