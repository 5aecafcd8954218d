"""The errors of a follower, each a :class:`ClientError`: what was wrong, and what helps."""

from __future__ import annotations

from ingester.client.errors import ClientError


class FollowerError(ClientError, code="follower"):
    """A copy cannot be kept as it is; what it has is whole, and as it was."""


class StateDamaged(FollowerError, code="state_damaged"):
    """The bytes of a state are none of a follower, or are broken, or of a newer version."""


class StateOfAnother(FollowerError, code="state_of_another"):
    """A state is of another table or another daemon: where it says that the copy is, means nothing
    here."""


class TableReplaced(FollowerError, code="table_replaced"):
    """The table was dropped, or dropped and made anew, under the copy."""


class FellBehind(FollowerError, code="fell_behind"):
    """A copy that began at the tail or at a time cannot be gone on with exactly."""


class SinkFailed(FollowerError, code="sink"):
    """A sink raised; its error is the cause."""


def table_made_anew(namespace: str, table: str, version: int) -> TableReplaced:
    """The error where a copy is of a version of the table that there is no more."""
    return TableReplaced(
        f"table {namespace}/{table} was dropped and made anew: the copy has version {version} of"
        " the earlier one; seek to the beginning to copy the new one"
    )
