"""What sequences and versions contained is kept by a table, for a bounded number of them."""

from __future__ import annotations

import pytest

from persist.manifest import Action, Manifest, Proposal, Txn, TxnDiffers
from persist.manifest.actions import OriginAction, SequenceContent
from persist.manifest.draft import MOST_TXN_CONTENTS, apply
from persist.manifest.files import (
    decode_changelog,
    decode_snapshot,
    encode_changelog,
    encode_snapshot,
)
from persist.manifest.origins import MOST_CONTENTS, completed, fresh, taken_over, with_contents
from persist.manifest.state import EMPTY
from tests.persist.manifest.samples import add, put_in, table
from tests.persist.manifest.samples import fresh as reopened

A, B = ("a", 1), ("b", 1)


def content(sequence: int, digest: int = 7) -> SequenceContent:
    return SequenceContent(sequence, 10 * sequence, digest)


def push(version: int, path: str, digest: int = 7) -> Proposal:
    """A write of a foreign writer that says what it contains."""
    txn = Txn("spark-job", version, (content(version, digest),))
    return Proposal([add(path, kind="push"), txn])


def test_the_first_and_the_newest_contents_of_an_origin_stay() -> None:
    origin = fresh("o", A)
    for first in range(0, 100, 10):
        origin = with_contents(origin, map(content, range(first, first + 10)))
    kept = [each.sequence for each in origin.contents]
    assert kept == [0, *range(101 - MOST_CONTENTS, 100)]
    again = with_contents(origin, [content(99, digest=8)])
    assert [each.sequence for each in again.contents] == kept
    assert again.contents[-1].digest == 8


def test_contents_stay_when_an_origin_advances_or_moves() -> None:
    origin = with_contents(fresh("o", A), [content(1), content(2)])
    assert completed(origin, 2).contents == origin.contents
    assert taken_over(origin, B, 2, None).contents == origin.contents


@pytest.mark.parametrize(
    ("action", "line"),
    [
        (Txn("app", 3), b'{"action":"txn","app_id":"app","version":3}'),
        (
            OriginAction("o", "a", 1, 4, ()),
            b'{"action":"origin","name":"o","owner_id":"a","owner_epoch":1,"complete":4,"ahead":[]}',
        ),
    ],
)
def test_without_contents_an_action_is_as_before(action: Action, line: bytes) -> None:
    encoded = encode_changelog(((1, "u"),), [action])
    assert encoded.splitlines()[1] == line
    assert list(decode_changelog(encoded).actions) == [action]


def test_contents_survive_changelogs_and_snapshots() -> None:
    actions: list[Action] = [
        with_contents(fresh("o", A), [content(2, digest=2**32 - 1)]),
        Txn("app", 3, (content(3, digest=2**64 - 1),)),
        Txn("app", 5, (content(5),)),
        Txn("another", 1),
    ]
    assert list(decode_changelog(encode_changelog(((1, "u"),), actions)).actions) == actions
    state = apply(EMPTY, actions)
    assert decode_snapshot(encode_snapshot(state)) == state
    assert state.txn("app").contents == (content(3, digest=2**64 - 1), content(5))


def test_a_table_keeps_the_contents_of_the_newest_versions() -> None:
    state = EMPTY
    for version in range(2 * MOST_TXN_CONTENTS):
        state = apply(state, [Txn("app", version, (content(version),))])
    kept = [each.sequence for each in state.txn_contents["app"]]
    assert kept == list(range(MOST_TXN_CONTENTS, 2 * MOST_TXN_CONTENTS))


def test_a_version_is_committed_once_and_only_with_the_same_content(manifest: Manifest) -> None:
    state = put_in(manifest, table(manifest), push(3, "data/p3.parquet"))
    state = put_in(manifest, state, push(5, "data/p5.parquet"))
    for version in (3, 5):
        assert put_in(manifest, state, push(version, "data/again.parquet")) is state
        with pytest.raises(TxnDiffers) as refused:
            put_in(manifest, state, push(version, "data/again.parquet", digest=8))
        assert refused.value.known == content(version)
    for version in (2, 4):  # never committed, and no longer known for certain
        with pytest.raises(TxnDiffers) as refused:
            put_in(manifest, state, push(version, "data/again.parquet"))
        assert (refused.value.known, refused.value.newest) == (None, 5)
    assert reopened(manifest).load().file_count == state.file_count


def test_a_version_without_a_content_is_judged_by_its_number(manifest: Manifest) -> None:
    old = Proposal([add("data/p3.parquet", kind="push"), Txn("spark-job", 3)])
    state = put_in(manifest, table(manifest), old)
    assert put_in(manifest, state, push(3, "data/again.parquet")) is state
    with pytest.raises(TxnDiffers):
        put_in(manifest, state, push(2, "data/again.parquet"))
    assert put_in(manifest, state, push(4, "data/p4.parquet")).txns["spark-job"] == 4
