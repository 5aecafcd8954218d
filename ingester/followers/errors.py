"""The errors of followers. Each is a :class:`ClientError` whose message says what helps."""

from __future__ import annotations

from ingester.client.errors import ClientError


class FollowerError(ClientError, code="follower"):
    """The copy cannot be continued. What it holds is complete and unchanged."""


class StateDamaged(FollowerError, code="state_damaged"):
    """The bytes are not a follower's state, are corrupt, or come from a newer version."""


class StateOfAnother(FollowerError, code="state_of_another"):
    """The state belongs to another table or another daemon, so its position means nothing here."""


class TableReplaced(FollowerError, code="table_replaced"):
    """The followed table was dropped, or dropped and created again."""


class FellBehind(FollowerError, code="fell_behind"):
    """A copy that began at the tail or at a time cannot be continued exactly."""


class SinkFailed(FollowerError, code="sink"):
    """A sink raised an error, which is the cause of this one."""


def table_recreated(namespace: str, table: str, version: int) -> TableReplaced:
    """The error for a copy whose table version no longer exists."""
    return TableReplaced(
        f"table {namespace}/{table} was dropped and created again: the copy has version {version}"
        " of the earlier table; seek to the beginning to copy the new one"
    )
