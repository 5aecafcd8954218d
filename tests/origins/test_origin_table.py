"""An origin's table has three states; an event that a state does not allow raises."""

from __future__ import annotations

from itertools import product

import pytest

from ingester.errors import OwnedElsewhere
from ingester.origins.origin_table import (
    TRANSITIONS,
    Event,
    IllegalClaimEvent,
    OriginClaim,
    OriginTable,
)
from ingester.origins.registry import Origins
from persist.manifest.origins import OriginVerdict, SequenceRun, fresh, origin_of

ME = ("me", 1)
WAYS: dict[OriginClaim, tuple[Event, ...]] = {
    OriginClaim.UNCLAIMED: (),
    OriginClaim.OURS: (Event.CLAIM,),
    OriginClaim.LOST: (Event.CLAIM, Event.LOSE),
}
ILLEGAL = sorted(set(product(OriginClaim, Event)) - set(TRANSITIONS), key=str)


def in_state(state: OriginClaim) -> OriginTable:
    table = OriginTable("o", ("ns", "t"))
    for event in WAYS[state]:
        table.move(event, ME if event is Event.CLAIM else None)
    assert table.state is state
    return table


@pytest.mark.parametrize(("state", "event"), ILLEGAL)
def test_an_event_out_of_place_raises_and_changes_nothing(state: OriginClaim, event: Event) -> None:
    table = in_state(state)
    with pytest.raises(IllegalClaimEvent, match=f"{event.value} while {state.value}"):
        table.move(event)
    assert table.state is state


@pytest.mark.parametrize(("state", "event"), sorted(TRANSITIONS, key=str))
def test_this_daemon_has_the_origin_only_while_it_is_ours(state: OriginClaim, event: Event) -> None:
    table = in_state(state)
    table.move(event, ME if event is Event.CLAIM else None)
    assert table.state is TRANSITIONS[state, event]
    assert table.process == (ME if table.state is OriginClaim.OURS else None)
    assert table.owns(0) == (table.state is OriginClaim.OURS)


def test_writes_are_refused_once_another_daemon_has_the_origin() -> None:
    assert in_state(OriginClaim.OURS).is_new(1)
    with pytest.raises(OwnedElsewhere, match="through another daemon"):
        in_state(OriginClaim.LOST).is_new(1)


def test_the_fate_of_an_operation_that_never_began_cannot_be_told() -> None:
    with pytest.raises(KeyError):
        in_state(OriginClaim.OURS).fates.end(1, None)


def test_what_another_had_is_not_new_where_its_run_was_merged_into_ours() -> None:
    origins, table = Origins(), ("ns", "t")
    found = origins.table("o", table)
    runs = [SequenceRun(0, ("other", 1), None, {}), SequenceRun(10, ME, None, {})]
    origins.claim(found, origin_of(fresh("o", ME), ME, runs, None), ME)
    for sequence in range(10, 20):
        origins.note_applied("o", table, sequence, sequence, (), ME)
    merged = origin_of(fresh("o", ME), ME, [SequenceRun(0, ME, None, {})], None)
    origins.load(found, merged, ME[0])
    verdicts = [found.verdict(sequence) for sequence in (5, 12, 20)]
    assert verdicts == [OriginVerdict.DUPLICATE, OriginVerdict.DUPLICATE, OriginVerdict.NEW]
    assert origins.is_applied("o", table, 5)
