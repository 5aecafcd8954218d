"""The acknowledgement level of tables, and of streams into them. Pure.

The nearest one that is set decides:

    ``[tables."shop/orders"] ack``   the daemon's settings of the table
    ``create_table``'s ``ack``       in the table's manifest
    ``[namespaces.shop] ack``
    ``ack``                          by default ``disk``, or ``store`` with ``wal.disk = "off"``

A stream may ask for more than its table's level, never for less. Without a log on the disk
everything is at ``store``, also tables that another daemon created with ``disk``.
"""

from __future__ import annotations

from ingester.config.settings import Level, Settings
from ingester.errors import BadRequest

LEVELS: tuple[Level, ...] = ("disk", "store")
"""All levels, by rising safety: the index of an operation's is whether the store has it."""


class AckLevels:
    """The levels by a daemon's settings. Any thread."""

    def __init__(self, settings: Settings) -> None:
        self._diskless = settings.wal.disk == "off"
        self._default = settings.default_ack
        self._of_namespace = {name: each.ack for name, each in settings.namespaces.items()}
        self._of_table = {
            (key.split("/")[0], key.split("/")[1]): each.ack
            for key, each in settings.tables.items()
        }

    def level(self, key: tuple[str, str], own: Level | None) -> Level:
        """Return the level of a table.

        Args:
            own: the level in the table's manifest, if it has one.
        """
        if self._diskless:
            return "store"
        set_here = self._of_table.get(key) or own or self._of_namespace.get(key[0])
        return set_here or self._default

    def at_store(self, key: tuple[str, str], own: Level | None, asked: Level | None = None) -> bool:
        """Return whether writes into a table are acknowledged at ``store``.

        Args:
            own: as in :meth:`level`.
            asked: the level that the client asks for.

        Raises:
            BadRequest: the table has a higher level than ``asked``.
        """
        self.check_disk(asked)
        level = self.level(key, own)
        if asked == "disk" and level == "store":
            raise BadRequest(
                f"ack: table {key[0]}/{key[1]} has level 'store'; a stream may ask for more than"
                " its table's level, not for less"
            )
        return "store" in (asked, level)

    def check_disk(self, asked: Level | None) -> None:
        """Raise :class:`BadRequest` for ``disk`` if the daemon has no log on its disk."""
        if asked == "disk" and self._diskless:
            raise BadRequest(
                "ack: 'disk' needs a log on the daemon's disk, and its setting wal.disk is 'off':"
                " use 'store'"
            )


def parse_level(what: str, text: str | None) -> Level | None:
    """Return a level that a client gives; None if it gives none.

    Raises:
        BadRequest: it is no level.
    """
    if text is None:
        return None
    for level in LEVELS:
        if text == level:
            return level
    raise BadRequest(f"{what}: ack must be one of {', '.join(LEVELS)}")
