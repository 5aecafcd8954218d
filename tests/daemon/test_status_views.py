"""Fields of the status as shown to a caller without permission for all namespaces."""

from __future__ import annotations

import types
import typing
from datetime import UTC, datetime
from typing import Any, get_args, get_origin

import msgspec

from ingester.daemon.status_items import shown_store_log, status_seen
from ingester.observability.status import DaemonStatus, LostOperations, StoreLogStatus
from ingester.observability.status_lists import TOP

THEIRS = "theirs"
TOLD = {
    # These fields name no namespace or table; the tests of their producers ensure it.
    *(
        "identity",
        "alarms",
        "store_state",
        "disk",
        "admission",
        "security",
        "log_levels",
        "counts",
        "drain",
    ),
    # Already filtered by the report, as each entry has a namespace or an origin.
    *("tables", "origins", "followers", "replications", "namespaces"),
    # Shown without the text of problems.
    *("push_reading", "adoptions", "clean_up", "compaction"),
}
"""Fields whose text is shown to every caller."""


def filled(kind: Any) -> Any:
    """A value of a type, with ``THEIRS`` for every text and one entry in every list."""
    args = [each for each in get_args(kind) if each is not types.NoneType]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        return kind(**{f.name: filled(hints[f.name]) for f in msgspec.structs.fields(kind)})
    if get_origin(kind) is list:
        return [filled(args[0])]
    if get_origin(kind) is dict:
        return {filled(args[0]): filled(args[1])}
    if args:
        return args[0] if get_origin(kind) is typing.Literal else filled(args[0])
    return {str: THEIRS, int: 1, float: 1.0, bool: True, datetime: datetime.now(UTC)}[kind]


def texts(status: DaemonStatus) -> set[str]:
    """Fields that contain another namespace's text."""
    return {f for f in status.__struct_fields__ if THEIRS in str(getattr(status, f))}


def test_each_field_of_the_status_is_for_everybody_or_cut() -> None:
    whole = filled(DaemonStatus)
    assert status_seen(whole, None) is whole
    assert {"errors", "pushes", "persist", "transform"} <= texts(whole)
    assert texts(status_seen(whole, lambda _: False)) == TOLD


def test_problems_are_told_to_others_without_their_words() -> None:
    cut = status_seen(filled(DaemonStatus), lambda _: False)
    assert cut.push_reading.failure == "told to those who have '*'"
    problems = [cut.drain.problem, cut.store_state.last_error, cut.store_log.last_error]
    assert [*problems, cut.adoptions[0].problem] == [None] * 4
    assert (cut.push_reading.unreadable, cut.errors, cut.transform.hung_calls) == ([], [], {})


def test_of_many_tables_with_lost_operations_those_that_lost_most_are_shown() -> None:
    lost = [
        LostOperations(namespace=f"n{n % 2}", table=f"t{n}", epoch=1, operations=n)
        for n in range(3 * TOP)
    ]
    whole = shown_store_log(StoreLogStatus(lost=lost, last_error="n1/t1"), None)
    assert [each.operations for each in whole.lost] == list(range(299, 199, -1))
    assert whole.last_error == "n1/t1"
    cut = shown_store_log(whole, lambda namespace: namespace == "n1")
    assert {each.namespace for each in cut.lost} == {"n1"}
    assert cut.last_error is None
