"""The action for a table follows from its state in the copy and its facts at the source."""

from __future__ import annotations

import msgspec
import pytest

from ingester.postgres.facts import ColumnFacts, Leaf, TableFacts
from ingester.postgres.options import Options
from ingester.postgres.planning import Action, WantedTable, plan, truncated_by, unused
from ingester.postgres.states import (
    BadState,
    KeptColumn,
    ReplicaState,
    SlotPlace,
    decode_state,
    encode_state,
)

PLACE = SlotPlace("7", "shop", "ingester", 100)
ID = ColumnFacts("id", 1, 23, -1, 23, -1, "integer", not_null=True, altered_by=5)
NAME = ColumnFacts("name", 2, 25, -1, 25, -1, "text", altered_by=5)
MOOD = ColumnFacts("mood", 3, 99, -1, 99, -1, "mood", ((1, "sad"), (2, "happy")), altered_by=5)
BORN = Leaf(11, 11, 6, 6)
FACTS = TableFacts(
    10, "public", "t", "r", "d", ("id",), False, (ID, NAME, MOOD), 77, leaves=(BORN,)
)
change = msgspec.structs.replace


def kept(facts: TableFacts) -> tuple[KeptColumn, ...]:
    kinds = {23: "int32", 20: "int64"}
    return tuple(KeptColumn(c.name, c.name, kinds.get(c.base_oid, "string")) for c in facts.columns)


def wanted(facts: TableFacts) -> WantedTable:
    return WantedTable("t", facts, kept(facts))


STATE = ReplicaState(PLACE, "ingester", FACTS, kept(FACTS), from_lsn=120)


def with_column(old: ColumnFacts, **changed: object) -> TableFacts:
    columns = tuple(change(c, **changed) if c is old else c for c in FACTS.columns)
    return change(FACTS, columns=columns)


def more(column: ColumnFacts, **changed: object) -> TableFacts:
    return change(FACTS, columns=(*FACTS.columns, column), **changed)


ADDED = ColumnFacts("v", 4, 23, -1, 23, -1, "integer", altered_by=9)
REWRITTEN = with_column(NAME, altered_by=9)


@pytest.mark.parametrize(
    ("facts", "action"),
    [
        (FACTS, "follow"),
        (more(ADDED), "widen"),
        (change(FACTS, identity="f"), "widen"),
        (with_column(NAME, base_modifier=14, type_modifier=14), "widen"),
        (with_column(MOOD, enum_labels=(*MOOD.enum_labels, (3, "ok"))), "widen"),
        (change(FACTS, leaves=(BORN, Leaf(12, 12, 8, 8))), "widen"),
        (with_column(NAME, altered_by=9), "widen"),
        (change(FACTS, filenode=78), "ask"),
        (change(FACTS, leaves=(change(BORN, filenode=15),)), "ask"),
        (change(REWRITTEN, filenode=78), "copy"),
        (more(change(ADDED, has_missing=True)), "copy"),
        (more(ADDED, filenode=78), "copy"),
        (more(change(ADDED, enum_labels=MOOD.enum_labels)), "copy"),
        (more(change(ADDED, fields=((98, 1, 23, -1),))), "copy"),
        (change(FACTS, oid=9), "copy"),
        (change(FACTS, published_by=(5, 9)), "copy"),
        (change(FACTS, key=("id", "name")), "copy"),
        (change(FACTS, columns=(ID, NAME)), "copy"),
        (change(FACTS, columns=(ID, NAME, change(MOOD, number=4))), "copy"),
        (with_column(NAME, name="label"), "copy"),
        (with_column(ID, base_oid=20, type_oid=20), "copy"),
        (with_column(MOOD, enum_labels=((1, "sad"), (2, "glad"))), "copy"),
        (with_column(NAME, fields=((50, 1, 23, -1),)), "copy"),
        (change(FACTS, leaves=()), "copy"),
        (change(FACTS, leaves=(BORN, Leaf(12, 12, 8, 9))), "copy"),
        (change(FACTS, leaves=(change(BORN, attached_by=9),)), "copy"),
    ],
)
def test_what_no_row_tells_of_is_copied_anew(facts: TableFacts, action: Action) -> None:
    assert plan(PLACE, {"t": STATE}, [wanted(facts)])["t"].action == action


@pytest.mark.parametrize(
    ("facts", "explained"),
    [
        (change(FACTS, filenode=78, changed_by=8), True),
        # A rewrite after the TRUNCATE may have changed values.
        (change(FACTS, filenode=78, changed_by=9), False),
        (change(FACTS, filenode=78, leaves=(change(BORN, filenode=15),), changed_by=8), False),
        (
            change(FACTS, leaves=(change(BORN, filenode=15, changed_by=7),), changed_by=9),
            True,
        ),
    ],
)
def test_new_files_are_explained_by_a_truncate_that_was_the_last_to_change_them(
    facts: TableFacts, explained: bool
) -> None:
    assert truncated_by(FACTS, facts, {7, 8}) is explained


def test_states_decide_together_with_the_source() -> None:
    new = WantedTable("n", FACTS, kept(FACTS))
    hindered = WantedTable("h", FACTS, (), "it has no key", ("ALTER TABLE …",))
    have = {
        "gone": STATE,
        "aside": change(STATE, phase="set_aside", reason="infinity"),
        "back": change(STATE, phase="left"),
        "old": change(STATE, place=change(PLACE, slot_lsn=50)),
    }
    there = [WantedTable(name, FACTS, kept(FACTS)) for name in ("aside", "back", "old")]
    steps = plan(PLACE, have, [new, hindered, *there])
    assert {name: step.action for name, step in steps.items()} == {
        "n": "copy",
        "h": "set_aside",
        "gone": "leave",
        "aside": "copy",
        "back": "copy",
        "old": "copy",
    }
    assert steps["h"].helps == ("ALTER TABLE …",)
    assert steps["gone"].reason == "public.t is now followed as old"


def test_an_option_that_names_nothing_is_told() -> None:
    options = Options(
        *("host=x", "shop"),
        renames={"t": "u", "t.nam": "x"},
        policies={"*": "null", "public.t": "null", "public.t.name": "text", "t.name": "text"},
    )
    assert unused([FACTS], options) == ("--rename t.nam", "--values t.name")


def test_a_state_is_read_as_it_was_written_or_refused() -> None:
    assert decode_state(encode_state(STATE)) == STATE
    for data in (b"", b"{}", b"\xff", encode_state(STATE).replace(b'"version":1', b'"version":2')):
        with pytest.raises(BadState):
            decode_state(data)
    columns = tuple(change(NAME, name="c" * 900, number=n) for n in range(1200))
    wide = change(FACTS, columns=columns)
    with pytest.raises(BadState, match="too many columns"):
        encode_state(change(STATE, facts=wide))
