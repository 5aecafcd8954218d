"""The bytes of manifest files: written values are read back, and broken bytes are reported."""

from __future__ import annotations

import json
import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.manifest import EMPTY, Action, Add, ColumnStats, WriterIdentity, apply
from persist.manifest.draft import StateDraft
from persist.manifest.files import (
    CommitRecord,
    DamagedFile,
    decode_changelog,
    decode_commit,
    decode_snapshot,
    encode_changelog,
    encode_commit,
    encode_new_changelog,
    encode_snapshot,
)
from persist.manifest.paths import (
    after_version,
    before_version,
    changelog_path,
    commit_path,
    parse_claim,
    parse_entry,
    snapshot_path,
)
from tests.persist.manifest.samples import DEFINITION, add, any_action, any_add, persist

FOLDER = "ns/t/v1/_manifest/"
LINEAGE = ((38, "a"), (39, "b"))
SOME = (*DEFINITION, *persist(1), *persist(2))


@given(st.lists(any_action, max_size=6))
def test_a_changelog_is_read_back_as_it_was_written(actions: list[Action]) -> None:
    log = decode_changelog(encode_changelog(LINEAGE, actions))
    assert (log.lineage, list(log.actions)) == (LINEAGE, actions)
    for found, given_action in zip(log.actions, actions, strict=True):
        # True == 1 == 1.0 in Python; only the text tells them apart.
        assert repr(found) == repr(given_action)


def test_a_changelog_is_lines_of_json_between_lineage_and_end() -> None:
    lines = [json.loads(line) for line in encode_changelog(LINEAGE, persist(7)).splitlines()]
    assert lines[0] == {"lineage": [[38, "a"], [39, "b"]]}
    assert [line.get("action") for line in lines[1:-1]] == ["add", "applied"]
    assert lines[1]["values"] == ["2026-11-21"]
    assert lines[-1] == {"end": 2}


@given(st.data())
def test_a_changelog_cut_anywhere_is_damaged(data: st.DataObject) -> None:
    whole = encode_changelog(LINEAGE, SOME)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DamagedFile):
        decode_changelog(whole[:cut])


@given(st.binary(max_size=300))
def test_decoders_raise_only_damaged_file_for_any_bytes(data: bytes) -> None:
    for decode in (decode_changelog, decode_commit, decode_snapshot):
        with pytest.raises(DamagedFile):
            decode(data)


@given(st.data())
def test_a_changelog_with_a_changed_byte_is_damaged(data: st.DataObject) -> None:
    """The commit names the uid, so a changed uid belongs to another file."""
    uid, whole = encode_new_changelog(LINEAGE, 40, SOME)
    changed = bytearray(whole)
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] ^= data.draw(st.integers(1, 255))
    try:
        found = decode_changelog(bytes(changed))
    except DamagedFile:
        return
    assert found.lineage[-1] != (40, uid)


def test_a_new_changelogs_uid_is_a_new_uuid() -> None:
    made = [encode_new_changelog(LINEAGE, 40, SOME) for _ in range(50)]
    uids = [uid for uid, _ in made]
    assert len(set(uids)) == 50
    assert all(uuid.UUID(uid).hex == uid and uuid.UUID(uid).version == 8 for uid in uids)
    uid, data = made[0]
    assert decode_changelog(data) == ((*LINEAGE, (40, uid)), tuple(SOME), len(data))


def test_a_uid_is_bound_to_its_changelog_and_to_the_lineage_before() -> None:
    uid, _ = encode_new_changelog(LINEAGE, 40, SOME)
    other_past = ((38, "a"), (39, "x"))
    for lineage, actions in (((*LINEAGE, (40, uid)), SOME[1:]), ((*other_past, (40, uid)), SOME)):
        with pytest.raises(DamagedFile, match="its uid says"):
            decode_changelog(encode_changelog(lineage, actions))


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=3))
def test_a_changelog_of_an_unbound_uid_with_changed_bytes_is_read_or_damaged(
    at: int, junk: bytes
) -> None:
    whole = bytearray(encode_changelog(LINEAGE, SOME))
    at %= len(whole)
    whole[at : at + len(junk)] = junk
    try:
        log = decode_changelog(bytes(whole))
    except DamagedFile:
        return
    assert len(log.actions) == len(SOME)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"action":"transmogrify"}', "transmogrify.*: a newer version of the ingester may"),
        (b'{"action":"horizon","at":"x","more":1}', "more.*: a newer version of the ingester may"),
        (b'{"action":"horizon"}', "at"),
        (b"[" * 100_000, "depth|recursion|malformed|Expected"),
    ],
)
def test_an_unknown_action_is_damage_and_is_named(line: bytes, reason: str) -> None:
    data = encode_changelog(LINEAGE, persist(1)[:1]).splitlines()
    data[1] = line
    with pytest.raises(DamagedFile, match=reason):
        decode_changelog(b"\n".join(data) + b"\n")


@pytest.mark.parametrize("lineage", [(), ((1, "a"), (3, "b")), ((2, "a"), (2, "b")), ((0, "a"),)])
def test_a_lineage_with_a_gap_is_damage(lineage: tuple[tuple[int, str], ...]) -> None:
    with pytest.raises(DamagedFile, match="lineage"):
        decode_changelog(encode_changelog(lineage, SOME))


def test_an_end_with_a_wrong_count_is_damage() -> None:
    data = encode_changelog(LINEAGE, SOME).replace(b'{"end":7}', b'{"end":8}')
    with pytest.raises(DamagedFile, match="after 7 actions, and should have 8"):
        decode_changelog(data)


def test_a_commit_is_one_json_object_as_the_format_page_has_it() -> None:
    commit = CommitRecord(
        version=41,
        uid="u",
        parent="p",
        writer=WriterIdentity("me", "run", 7),
        at="2026-11-21T00:00:00+00:00",
    )
    assert decode_commit(encode_commit(commit)) == commit
    assert json.loads(encode_commit(commit)) == {
        "version": 41,
        "uid": "u",
        "parent": "p",
        "writer": {"ingester_id": "me", "incarnation": "run", "epoch": 7},
        "at": "2026-11-21T00:00:00+00:00",
    }


def test_a_snapshot_is_read_back_as_the_same_state() -> None:
    draft = StateDraft(EMPTY)
    draft.apply(SOME)
    state = draft.finish(41, "uid", ((40, "x"), (41, "uid")))
    found = decode_snapshot(encode_snapshot(state))
    assert found == state
    assert found.partitions == state.partitions
    assert found.lineage == ((41, "uid"),)


@given(st.data())
def test_a_snapshot_with_any_flipped_bit_or_cut_is_damaged(data: st.DataObject) -> None:
    whole = bytearray(encode_snapshot(apply(EMPTY, SOME)))
    at = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DamagedFile):
        decode_snapshot(bytes(whole[:at]))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DamagedFile):
        decode_snapshot(bytes(whole))


@given(st.lists(any_add, max_size=4, unique_by=lambda file: file.path))
def test_files_from_a_snapshot_are_those_of_the_changelog_also_written_again(
    files: list[Add],
) -> None:
    """Their statistics are decoded lazily."""
    known = [msgspec.structs.replace(file, schema_id=1, spec_id=1) for file in files]
    state = apply(EMPTY, [*DEFINITION, *known])
    once = decode_snapshot(encode_snapshot(state))
    again = decode_snapshot(encode_snapshot(once))
    read = decode_changelog(encode_changelog(LINEAGE, list(again.files.values()))).actions
    assert {file.path: file for file in read if isinstance(file, Add)} == dict(state.files)
    for file in known:
        found = once.files[file.path].stats
        assert found == file.stats
        assert (len(found), list(found)) == (len(file.stats), list(file.stats))
        assert [found.get(name) for name in ("", *file.stats)] == [
            file.stats.get(name) for name in ("", *file.stats)
        ]


def test_infinite_bounds_become_unknown_ones() -> None:
    odd = ColumnStats(min=float("-inf"), max=float("nan"), nulls=0)
    file = msgspec.structs.replace(add("data/f.parquet"), stats={"odd": odd})
    found = decode_changelog(encode_changelog(LINEAGE, [file])).actions[0]
    assert found.stats["odd"] == ColumnStats(min=None, max=None, nulls=0)  # type: ignore[union-attr]


@given(st.integers(1, 10**20 - 2), st.integers(1, 10**20 - 2))
def test_names_sort_like_their_versions(low: int, high: int) -> None:
    low, high = sorted((low, high))
    if low == high:
        high += 1
    of_low = [commit_path(FOLDER, low), changelog_path(FOLDER, low, "ff")]
    of_low.append(snapshot_path(FOLDER, low, "ff"))
    of_high = [commit_path(FOLDER, high), changelog_path(FOLDER, high, "00")]
    assert of_low[0] == min(of_low)
    assert before_version(FOLDER, low) < min(of_low)
    assert max(of_low) < after_version(FOLDER, low) < before_version(FOLDER, high) < min(of_high)


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("00000000000000000041.commit", (41, "commit", "")),
        ("00000000000000000041_ab12.changelog", (41, "changelog", "ab12")),
        ("00000000000000000041_ab12.snapshot", (41, "snapshot", "ab12")),
        ("41.commit", None),
        ("00000000000000000041_ab12.commit", None),
        ("00000000000000000041.changelog", None),
        ("00000000000000000041.commit.bak", None),
        (".tmp-7", None),
    ],
)
def test_file_names_are_parsed_and_foreign_ones_ignored(
    name: str, entry: tuple[int, str, str] | None
) -> None:
    assert parse_entry(FOLDER + name) == entry
    assert parse_claim("_ingesters/me/00000000000000000003.claim") == 3
    assert parse_claim("_ingesters/me/3.claim") is None
