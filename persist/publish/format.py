"""The contract of a format, which Iceberg and Delta fulfil.

An object is of one table and keeps what it knows of the table's metadata between calls, so it is
used by one thread at a time. All calls block. Objects in the store are created conditionally under
names that follow from the previous head and the new place alone, so two publishers that do the same
write the same bytes, and a publisher that finds an object there uses it. One last conditional
create makes a version visible; of two publishers one gets :class:`Overtaken`
(tests/persist/publish/test_crash_points.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from persist.publish.steps import Place, Step
from persist.table import TableDefinition

FormatName = Literal["iceberg", "delta"]
FORMATS: tuple[FormatName, ...] = ("iceberg", "delta")


class Head(NamedTuple):
    """The newest published version of a table in one format.

    Attributes:
        at_ms: the commit time of that version, by the store's clock.
        location: what an engine opens: the URL of the metadata file or of the table's folder.
    """

    place: Place
    at_ms: int
    location: str


class Format(Protocol):
    """One table in one format."""

    name: FormatName

    def unsupported(self, definition: TableDefinition) -> tuple[str, ...]:
        """Why the format cannot express the table, one sentence per column; empty if it can.

        Each names the column and its type, and what helps.
        """
        ...

    def head(self) -> Head | None:
        """The newest published version, read from the store; None if there is none.

        Raises:
            ForeignCommit: the newest version is not the ingester's.
            StoreError: the store cannot be read.
        """
        ...

    def publish(self, steps: Sequence[Step], *, retain_s: float) -> Head:
        """Publish these steps, which follow the head without a gap, or begin with a complete one.

        Publishing what is published already, or no steps, makes up for hints to readers that the
        last publisher may not have written, and returns the head.

        Args:
            retain_s: versions whose successor is older than this may be dropped from the metadata.

        Raises:
            Overtaken: another publisher published something else meanwhile; call :meth:`head`.
            NotPublishable: a step's columns cannot be expressed; the steps before it may be
                published.
            ForeignCommit: as :meth:`head`.
            StoreError: may be repeated; what is written so far is found again.
        """
        ...

    def clean_up(self, *, retain_s: float, grace_s: float) -> int:
        """Delete metadata that no kept version needs, and return the number of deleted objects.

        Args:
            grace_s: unreferenced objects younger than this stay: they may be about to be used.
        """
        ...
