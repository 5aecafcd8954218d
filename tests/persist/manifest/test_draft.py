"""Applied actions agree with a dictionary, and inconsistent ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.manifest import (
    ALL_APPLIED,
    EMPTY,
    NOTHING_APPLIED,
    Action,
    ActionRefused,
    Add,
    Applied,
    CheckpointAction,
    EpochComplete,
    Remove,
    Schema,
    SharedState,
    Spec,
    TableState,
    Txn,
    Values,
    WriterAction,
    WriterIdentity,
    apply,
)
from persist.manifest.draft import MOST_DELETED
from persist.manifest.files import decode_snapshot, encode_snapshot
from tests.persist.manifest.samples import DAY, DEFINITION, add, applied, persist

_OTHER = WriterIdentity(ingester_id="other", incarnation="i", epoch=4)
DEFINED = apply(EMPTY, DEFINITION)
_PARTITIONS: list[Values] = [("a",), ("b",), (None,), (7,)]


def _check(state: TableState, model: dict[str, Add]) -> None:
    assert dict(state.files) == model
    assert state.rows == sum(file.rows for file in model.values())
    assert state.bytes == sum(file.bytes for file in model.values())
    assert state.file_count == len(model)
    in_partitions = {key: list(files) for key, files in state.partitions.items()}
    expected: dict[tuple[int, Values], list[Add]] = {}
    for file in model.values():
        expected.setdefault(file.partition, []).append(file)
    assert in_partitions == expected  # in the order of their commits, no empty partition


@given(st.lists(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), max_size=5), max_size=6))
def test_a_state_equals_a_dict_model(versions: list[list[tuple[int, int]]]) -> None:
    """Each number toggles a file: absent ones are added, present ones removed."""
    state, model = DEFINED, dict[str, Add]()
    for version in versions:
        before, actions = state, list[Action]()
        snapshot_of_before = (dict(state.files), dict(state.partitions))
        for number, partition in version:
            path = f"data/{number}"
            if path in model:
                actions.append(Remove(path, "toggled"))
                del model[path]
            else:
                model[path] = add(path, values=_PARTITIONS[partition])
                actions.append(model[path])
        state = apply(state, actions)
        _check(state, model)
        assert (dict(before.files), dict(before.partitions)) == snapshot_of_before
    assert decode_snapshot(encode_snapshot(state)) == state


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        ([Remove("data/x", "why")], "remove of data/x, which is not in the table"),
        ([add("data/x"), add("data/x")], "add of data/x, which is in the table already"),
        ([applied(7), applied(6)], "goes back from 7 to 6"),
        ([EpochComplete("me", 1), applied(7)], "that epoch is complete"),
        ([Schema(3, "CCCC")], "schema 3 after schema 1"),
        ([Schema(1, "CCCC")], "schema 1 after schema 1"),
        ([Spec(9, ())], "spec 9 after spec 1"),
        (
            [WriterAction("a", "i", 3, "open"), WriterAction("a", "h", 2, "open")],
            "epoch 2 after epoch 3",
        ),
        ([Txn("app", 3), Txn("app", 3)], "txn app goes back from 3 to 3"),
    ],
)
def test_inconsistent_actions_are_refused_and_change_nothing(
    actions: list[Action], reason: str
) -> None:
    state = apply(DEFINED, persist(1, writer=_OTHER))
    with pytest.raises(ActionRefused, match=reason):
        apply(state, actions)
    assert state == apply(DEFINED, persist(1, writer=_OTHER))


def test_files_need_a_known_schema_and_spec() -> None:
    with pytest.raises(ActionRefused, match="unknown schema 1"):
        apply(EMPTY, [add("data/x")])
    with pytest.raises(ActionRefused, match="unknown spec 1"):
        apply(apply(EMPTY, DEFINITION[:1]), [add("data/x")])


def test_a_complete_epoch_replaces_its_applied_entries() -> None:
    state = apply(DEFINED, [applied(7), applied(9, values=("other",)), applied(3, writer=_OTHER)])
    assert state.applied_to("me", 1, 1, DAY) == 7
    assert state.applied_to("me", 1, 1, ("nowhere",)) == NOTHING_APPLIED
    done = apply(state, [EpochComplete("me", 1)])
    assert done.applied_to("me", 1, 1, ("nowhere",)) == ALL_APPLIED
    assert list(done.applied.values()) == [3]
    assert decode_snapshot(encode_snapshot(done)) == done


def test_the_last_schema_is_current_and_the_earlier_ones_stay() -> None:
    state = apply(DEFINED, [Schema(2, "BBBB"), Schema(2, "BBBB"), Spec(2, ("hour(time)",))])
    assert state.current_schema == Schema(2, "BBBB")
    assert state.current_spec == Spec(2, ("hour(time)",))
    assert sorted(state.schemas) == [1, 2]
    found = decode_snapshot(encode_snapshot(state))
    assert (found.current_schema, found.current_spec) == (Schema(2, "BBBB"), state.current_spec)


def test_a_checkpoint_without_state_is_deleted() -> None:
    state = apply(
        DEFINED, [CheckpointAction("topic-0", "AA=="), CheckpointAction("topic-1", "BB==")]
    )
    state = apply(state, [CheckpointAction("topic-0", None), CheckpointAction("absent", None)])
    kept = {each.partition: each.state for each in state.checkpoints.values()}
    assert kept == {"topic-0": None, "topic-1": "BB==", "absent": None}
    assert decode_snapshot(encode_snapshot(state)) == state


def test_the_newest_deleted_checkpoints_are_remembered() -> None:
    deleted = [CheckpointAction(f"p{n:05}", None, at=f"2026-01-01T{n:06}") for n in range(1100)]
    state = apply(DEFINED, [CheckpointAction("p", "AA==", at="2025-01-01T00"), *deleted])
    assert state.checkpoints["p"].state == "AA=="
    kept = sorted(each.partition for each in state.checkpoints.values() if each.state is None)
    assert kept == [f"p{n:05}" for n in range(1100 - MOST_DELETED, 1100)]


def test_shared_bytes_stay_while_a_checkpoint_refers_to_them() -> None:
    shared = SharedState("id", "AAAA")
    both = [CheckpointAction("a", "AA==", shared="id"), CheckpointAction("b", "BB==", shared="id")]
    state = apply(DEFINED, [shared, *both])
    assert decode_snapshot(encode_snapshot(state)) == state
    state = apply(state, [CheckpointAction("a", "CC==")])
    assert dict(state.shared_states) == {"id": shared}
    assert not apply(state, [CheckpointAction("b", None)]).shared_states
    with pytest.raises(ActionRefused, match="refers to shared state other"):
        apply(state, [CheckpointAction("a", "CC==", shared="other")])


def test_a_file_added_and_removed_in_one_draft_leaves_nothing() -> None:
    state = apply(DEFINED, [add("data/x"), Remove("data/x", "gone"), Applied("me", 1, 1, DAY, 1)])
    assert (state.file_count, state.rows, len(state.partitions)) == (0, 0, 0)
