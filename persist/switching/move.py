"""One switch under way, and who commits for it.

Law of this file: values only. Whoever carries a switch out has all that it takes from the seal.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from persist.manifest import (
    Manifest,
    Sealed,
    SwitchedMeanwhile,
    SwitchRefused,
    WriterIdentity,
)
from persist.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Move:
    """One switch under way: from which version, and what the seal says of it.

    Attributes:
        owner: The daemon that alone may seal, as the one that takes the table's writes.
    """

    store: ObjectStore
    namespace: str
    table: str
    old: int
    sealed: Sealed
    owner: WriterIdentity | None = None

    def manifest(self, version: int) -> Manifest:
        """The manifest of a version of the table."""
        return Manifest(self.store, self.namespace, self.table, version)

    def refused(self, reason: str) -> SwitchRefused:
        """The error of a switch that cannot be made."""
        return SwitchRefused(self.namespace, self.table, self.sealed.next, reason)

    @property
    def over(self) -> SwitchedMeanwhile:
        """The error of a switch that another one was faster than."""
        return SwitchedMeanwhile(self.namespace, self.table, self.sealed.switch)


def switcher() -> WriterIdentity:
    """An identity to commit switches under that no daemon can have, and that fences nobody."""
    return WriterIdentity(ingester_id="_table_versions", incarnation=uuid.uuid4().hex, epoch=0)
