"""The options of a replication, and the parsers of their texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from ingester.postgres.types import Policy

OnRemoved = Literal["keep", "empty"]


class BadOption(ValueError):
    """An invalid option."""


@dataclass(frozen=True)
class Options:
    """The options of a replication.

    Attributes:
        dsn: The database, as libpq takes it.
        tables: Tables to follow; empty for all of the publication.
        origin: The origin at the daemon; derived from system, database and slot if empty.
        renames: Names here by ``schema.table`` or ``schema.table.column``.
        policies: Policies for values that do not fit, by ``schema.table.column``,
            ``schema.table`` or ``*``.
        on_removed: What to do with a table here that is no longer published.
        resync: Tables to copy again at the start.
        resync_all: Copy all tables again, also if the slot is missing or another one.
    """

    dsn: str
    namespace: str
    tables: tuple[str, ...] = ()
    publication: str = "ingester"
    slot: str = "ingester"
    origin: str = ""
    renames: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, Policy] = field(default_factory=dict)
    on_removed: OnRemoved = "keep"
    resync: frozenset[str] = frozenset()
    resync_all: bool = False
    look_every_s: float = 10.0
    heartbeat_s: float = 10.0

    def policy(self, schema: str, table: str, column: str) -> Policy:
        """The column's policy: the most specific one given."""
        for name in (f"{schema}.{table}.{column}", f"{schema}.{table}", "*"):
            if name in self.policies:
                return self.policies[name]
        return "refuse"


def parse_pairs(what: str, texts: Iterable[str]) -> dict[str, str]:
    """Parse ``name=value`` texts.

    Raises:
        BadOption: not a pair, or a name with two values.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not (name and equals and value):
            raise BadOption(f"{what} {text!r} is not NAME=VALUE")
        if found.setdefault(name, value) != value:
            raise BadOption(f"{what}: {name!r} is given twice")
    return found


def parse_policies(texts: Iterable[str]) -> dict[str, Policy]:
    """Parse texts such as ``public.t.column=null``.

    Raises:
        BadOption: unknown policy.
    """
    found: dict[str, Policy] = {}
    for name, value in parse_pairs("--values", texts).items():
        for policy in get_args(Policy):
            if value == policy:
                found[name] = policy
        if name not in found:
            raise BadOption(
                f"--values {name}={value}: expected one of {', '.join(get_args(Policy))}"
            )
    return found
