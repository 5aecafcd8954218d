"""The rules by which tables are made and widened, and how many there may be.

Law of this file: values, and pure checks. A table that is there stays and can be opened whatever
the limits say; only what would be made new is refused, before anything is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ingester.config.settings import LimitsSettings
from ingester.errors import InvalidRequest, limit_facts
from ingester.schema.limits import ShapeLimits, check_columns
from persist.table import TableKey

DEFAULTS = LimitsSettings()


@dataclass(frozen=True, slots=True)
class TableRules:
    """The rules of one daemon's tables."""

    auto_create: bool = True
    """Whether tables are made by their first write."""
    limits: LimitsSettings = DEFAULTS
    endpoint: Callable[[], str] = lambda: ""
    """Tells where clients find this daemon, once that is known."""

    @property
    def shapes(self) -> ShapeLimits:
        """The limits that schemas are held to."""
        return shapes_of(self.limits)

    def check_new(self, key: TableKey, columns: int, there: Collection[TableKey]) -> None:
        """Raise :class:`InvalidRequest` for a table that cannot be made beside those ``there``.

        Args:
            there: the tables that the daemon has open.
        """
        if key in there:
            return
        check_columns(key, 0, columns, self.shapes)
        _check_count("tables", key, len(there), self.limits.tables)
        most = self.limits.namespaces
        if len(there) >= most:  # else there cannot be as many
            namespaces = {namespace for namespace, _ in there}
            if key[0] not in namespaces:
                _check_count("namespaces", key, len(namespaces), most)


def shapes_of(limits: LimitsSettings) -> ShapeLimits:
    """The limits that schemas are held to."""
    return ShapeLimits(
        columns=limits.columns,
        dictionaries=limits.dictionaries,
        nesting=limits.nesting,
        name_bytes=limits.name_bytes,
        metadata_bytes=limits.metadata_bytes,
    )


def _check_count(limit: str, key: TableKey, found: int, most: int) -> None:
    if found >= most:
        raise InvalidRequest(
            f"table {key[0]}/{key[1]} is not made: the daemon has {found} {limit} open;"
            f" limits.{limit} is {most}",
            details=limit_facts(f"limits.{limit}", most, found),
        )
