"""Offsets: the place where a stream of a table's files stands.

    {"snapshot": 41, "files": 3}     the first 3 files of version 41, nothing else yet
    {"version": 41, "files": 2}      all up to and with version 41, and the first 2 that 42 adds
    {…, "table_version": 2}          in that version of the table; without it, in the first

Law of this file: pure. An offset says all that is needed to find the files behind it again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ingester.spark.errors import StreamUnsuitable
from ingester.spark.options import SourceOptions


class Offset(NamedTuple):
    """The place up to which a stream has come."""

    version: int
    files: int
    snapshot: bool = False

    @classmethod
    def of(cls, offset: dict[str, Any], table_version: int) -> Offset:
        """The offset that Spark has kept as a dictionary, of a stream of this table version.

        Raises:
            StreamUnsuitable: It is of another one.
        """
        if (found := offset.get("table_version", 1)) != table_version:
            raise StreamUnsuitable(
                f"the checkpoint is of table version {found}, and the table is at version"
                f" {table_version} by now: begin anew, with a new checkpoint"
            )
        if "snapshot" in offset:
            return cls(int(offset["snapshot"]), int(offset["files"]), True)
        return cls(int(offset["version"]), int(offset["files"]))

    def plain(self, table_version: int) -> dict[str, Any]:
        """The dictionary that Spark keeps."""
        plain = {"snapshot" if self.snapshot else "version": self.version, "files": self.files}
        return plain if table_version == 1 else {**plain, "table_version": table_version}


BEGINNING = Offset(0, 0, snapshot=True)
"""The offset before everything: the version current then comes whole, and what follows it."""
FROM_NOW = Offset(-1, 0)
"""The offset behind everything that is there when the stream begins."""


def beginning(options: SourceOptions) -> Offset:
    """The offset at which the options say that a new stream begins."""
    if options.given.get("starting_version") == "latest":
        return FROM_NOW
    number = options.number("starting_version", 1)
    return BEGINNING if number is None else Offset(number - 1, 0)
