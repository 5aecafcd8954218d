"""What a hook is told: the push, all of its regions, and how often it was asked already.

Law of this file: pure and frozen. A context is a value: it can be kept, compared, and sent as JSON
(:func:`context_to_json`), and nothing in it reaches back into the controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from ingester.pushes.status import Status


class RegionView(msgspec.Struct, frozen=True):
    """A region of the push as it stands."""

    name: str
    status: Status
    since: datetime
    """The time of the last change of its status."""
    table_version: int | None = None
    """The version that the push makes there; None before it was created."""
    previous: int | None = None
    """The version that was current before the push."""
    reason: str = ""


class PushView(msgspec.Struct, frozen=True):
    """The push as it stands."""

    push_id: str
    namespace: str
    table: str
    status: Status
    """In ``pre_end_of_push_job`` the status that the push will have; in ``post_…`` that it has."""
    since: datetime
    began_at: datetime
    params: Mapping[str, str]
    """The parameters that whoever began the push has given to the hooks."""


class VersionStatistics(msgspec.Struct, frozen=True):
    """How much a version of a table holds, as its manifest says."""

    table_version: int
    rows: int
    bytes: int
    nulls: Mapping[str, int | None]
    """The number of nulls of each column; None where a file's statistics do not say."""


class Comparison(msgspec.Struct, frozen=True):
    """The version that a push makes, beside the one that is current in the same region."""

    new: VersionStatistics
    current: VersionStatistics | None
    """None where the table had no version before."""


class HookContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a method is called with."""

    method: str
    push: PushView
    regions: tuple[RegionView, ...]
    """All regions, in the order of the push."""
    region: str | None = None
    """The region that the call is about; None where it is about the whole push."""
    call: int = 1
    """1 at the first call of this step, one more at each further one. It survives a restart; a call
    whose answer was lost is made again with the same number."""
    first_called_at: datetime
    now: datetime
    deadline: datetime
    """A wait beyond it is answered as ``hooks.on_deadline`` says."""
    statistics: Comparison | None = None
    """What the region's manifest says of the data, for hooks that ask for it."""

    def view(self, name: str | None = None) -> RegionView:
        """Return the view of a region, of the call's own one by default.

        Raises:
            LookupError: no region has that name, or the call is about none.
        """
        wanted = self.region if name is None else name
        for each in self.regions:
            if each.name == wanted:
                return each
        raise LookupError(f"push {self.push.push_id} has no region {wanted!r}")


class ConfigContext(msgspec.Struct, frozen=True, kw_only=True):
    """What ``validate_hook_config`` is called with."""

    namespace: str | None
    """The table whose overrides are checked; None for the configuration of all tables."""
    table: str | None
    overrides: Mapping[str, str]


def context_to_json(context: HookContext) -> dict[str, Any]:
    """Return the context as values that JSON has; times are texts in UTC."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(context))
    return plain
