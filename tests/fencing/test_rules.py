"""Which process may commit for an old epoch, and which operations are still to be committed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from ingester.recovery.adoption_rules import (
    OrderUnknown,
    OrphanKey,
    OrphanPart,
    check_order,
    left_of,
)
from persist.manifest import (
    Action,
    Applied,
    EpochComplete,
    Fenced,
    Manifest,
    NotReplaced,
    OriginAction,
    OriginAhead,
    Proposal,
    Remove,
    Schema,
    Spec,
    TableState,
    WriterAction,
    WriterIdentity,
    apply,
    check_replaced,
    commit,
)
from persist.store import open_store
from tests.persist.manifest.samples import DAY, ME, add, applied, grown, persist, put_in, table

NEWER = WriterIdentity("me", "second", 2)
HERE = WriterAction("me", "second", 2, "open")
KEY = OrphanKey(ME, 1, DAY)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """The manifest of a table that does not exist yet."""
    return Manifest(open_store(f"file://{tmp_path}/store"), "ns", "t")


def part(seq: int, origin: str | None = None, origin_sequence: int | None = None) -> OrphanPart:
    """One row of an operation."""
    return OrphanPart(seq, pa.record_batch({"i": [seq]}), origin, origin_sequence)


def state_with(*actions: Action) -> TableState:
    """A state in memory."""
    return apply(TableState(), (Schema(1, "AAAA"), Spec(1, ("day(time)",)), *actions))


def left(state: TableState, *parts: OrphanPart) -> list[int]:
    """The sequences that are still to be adopted."""
    return [part.seq for part in left_of(state, {KEY: list(parts)}).get(KEY, [])]


def test_an_adoption_commits_where_a_stale_daemon_is_fenced(manifest: Manifest) -> None:
    state = put_in(manifest, table(manifest, 2), Proposal([HERE]), NEWER)
    with pytest.raises(Fenced):
        put_in(manifest, state, Proposal(persist(2)))
    adopted = commit(manifest, state, Proposal(persist(2)), ME, fence=check_replaced)
    assert adopted.applied_to("me", 1, 1, DAY) == 2
    with pytest.raises(Fenced):
        put_in(manifest, adopted, Proposal(persist(3)))
    after = grown(manifest, adopted, 1, writer=NEWER)
    assert after.applied_to("me", 2, 1, DAY) == 1
    assert after.writers["me"] == HERE


def test_an_adoption_of_an_identity_that_was_not_replaced_is_refused(manifest: Manifest) -> None:
    state = put_in(manifest, table(manifest, 2), Proposal([HERE]), NEWER)
    with pytest.raises(NotReplaced, match="epoch 2 was not replaced"):
        commit(manifest, state, Proposal(persist(1, writer=NEWER)), NEWER, fence=check_replaced)
    stranger = WriterIdentity("stranger", "one", 1)
    with pytest.raises(NotReplaced):
        commit(manifest, state, Proposal(persist(1)), stranger, fence=check_replaced)


def test_a_keyed_flush_already_in_files_removes_no_rows(manifest: Manifest) -> None:
    """Its removes alone would delete rows, as the add of those rows was dropped."""
    state = table(manifest, 3)
    (first, second) = sorted(state.files)
    flush: list[Action] = [Remove(first, "newer rows"), add("data/merged.parquet", 2), applied(2)]
    after = put_in(manifest, state, Proposal(flush))
    assert after is state
    assert sorted(after.files) == [first, second]


def test_operations_applied_under_the_old_identity_are_left_out() -> None:
    parts = [part(seq) for seq in (3, 5, 9)]
    assert left(state_with(), *parts) == [3, 5, 9]
    assert left(state_with(Applied("me", 1, 1, DAY, 5)), *parts) == [9]
    assert left(state_with(Applied("me", 2, 1, DAY, 9)), *parts) == [3, 5, 9]
    assert left(state_with(Applied("me", 1, 1, ("other",), 9)), *parts) == [3, 5, 9]
    assert left(state_with(EpochComplete("me", 1)), *parts) == []


def test_operations_of_an_origin_already_in_files_are_left_out() -> None:
    parts = [part(1, "o", 10), part(2, "o", 11), part(3, "o", 12), part(4, "p", 10), part(5)]
    ahead = (OriginAhead(1, DAY, 11), OriginAhead(1, ("other",), 12))
    assert left(state_with(OriginAction("o", "me", 2, 10, ())), *parts) == [2, 3, 4, 5]
    assert left(state_with(OriginAction("o", "me", 2, None, ahead)), *parts) == [3, 4, 5]
    assert left(state_with(OriginAction("q", "me", 2, 99, ())), *parts) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "actions",
    [
        (WriterAction("me", "second", 2, "open"),),
        (WriterAction("me", "second", 2, "closed"), Applied("me", 2, 1, DAY, 1)),
        (WriterAction("me", "second", 2, "closed"), EpochComplete("me", 2)),
    ],
)
def test_the_order_against_a_newer_epoch_that_may_have_the_keys_is_unknown(
    actions: tuple[Action, ...],
) -> None:
    with pytest.raises(OrderUnknown, match="epoch 2"):
        check_order(state_with(*actions), [KEY])


@pytest.mark.parametrize(
    "actions",
    [
        (),
        (WriterAction("me", "second", 2, "closed"), Applied("me", 2, 1, ("other",), 1)),
        (WriterAction("me", "first", 1, "open"), Applied("me", 1, 1, DAY, 1)),
        (WriterAction("other", "one", 7, "open"), Applied("other", 7, 1, DAY, 1)),
    ],
)
def test_log_order_decides_where_no_newer_epoch_has_the_keys(actions: tuple[Action, ...]) -> None:
    check_order(state_with(*actions), [KEY])
