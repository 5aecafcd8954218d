"""The options of a replication, and the parsers of their texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from ingester.postgres.types import Policy

OnRemoved = Literal["keep", "empty"]


class BadOption(ValueError):
    """An option that says nothing."""


@dataclass(frozen=True)
class Options:
    """The options of a replication.

    Attributes:
        dsn: The database, as libpq has it.
        tables: Those that are followed; all of the publication where none is named.
        origin: Under which the daemon knows it; made of the system, database and slot if empty.
        renames: Names here by ``schema.table`` or ``schema.table.column``.
        policies: What becomes of values that no column here holds, by ``schema.table.column``,
            ``schema.table`` or ``*``.
        on_removed: What becomes of a table here that the publication has no more.
        resync: Tables that are copied anew at the start; ``resync_all``: all of them, also where
            the slot is gone or another one.
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
        """Return the policy of a column: the most particular one that is given."""
        for name in (f"{schema}.{table}.{column}", f"{schema}.{table}", "*"):
            if name in self.policies:
                return self.policies[name]
        return "refuse"


def parse_pairs(what: str, texts: Iterable[str]) -> dict[str, str]:
    """Return the pairs of texts as ``name=value``; a name without a schema is in ``public``.

    Raises:
        BadOption: one is no such pair, or a name stands twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not (name and equals and value):
            raise BadOption(f"{what} {text!r} is not NAME=VALUE")
        if found.setdefault(name, value) != value:
            raise BadOption(f"{what}: {name!r} stands twice")
    return found


def parse_policies(texts: Iterable[str]) -> dict[str, Policy]:
    """Return the policies of texts as ``public.t.column=null``.

    Raises:
        BadOption: there is no such policy.
    """
    found: dict[str, Policy] = {}
    for name, value in parse_pairs("--values", texts).items():
        for policy in get_args(Policy):
            if value == policy:
                found[name] = policy
        if name not in found:
            raise BadOption(f"--values {name}={value}: not one of {', '.join(get_args(Policy))}")
    return found
