"""Different tables of a source have different names in the copy."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.postgres.facts import ColumnFacts, TableFacts
from ingester.postgres.options import BadRename, Names, parse_pairs, split_name
from ingester.schema.limits import check_column_names, check_table_name

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
"""All names that PostgreSQL allows, without the limit on their length."""


def table(oid: int, schema: str, name: str, *columns: str) -> TableFacts:
    facts = tuple(
        ColumnFacts(column, number, 23, -1, 23, -1, "integer")
        for number, column in enumerate(columns, 1)
    )
    return TableFacts(oid, schema, name, "r", "d", (), False, facts, oid)


@pytest.mark.parametrize(
    ("schema", "name", "here"),
    [
        ("public", "orders", "orders"),
        ("public", "Order", "Order"),
        ("sales", "items", "sales.items"),
        ("public", "sales.items", "sales-2e-items"),
        ("public", "_a", "x--5f-a"),
        ("public", "_prisma_migrations", "x--5f-prisma_migrations"),
        ("public", "Order Details", "Order-20-Details"),
        ("public", "größe", "gr-f6--df-e"),
        ("_s", "_t", "x--5f-s.x--5f-t"),
        ("public", "a-b", "a-2d-b"),
        ("public", "\N{SNOWMAN}", "x--2603-"),
    ],
)
def test_a_table_is_called(schema: str, name: str, here: str) -> None:
    assert Names().table(schema, name) == here


@given(st.lists(st.tuples(st.just("public") | NAMES, NAMES), min_size=2, unique=True))
def test_two_tables_never_have_one_name_and_each_can_be_had(pairs: list[tuple[str, str]]) -> None:
    names = [Names().table(*pair) for pair in pairs]
    assert len(set(names)) == len(pairs)
    for name in names:
        check_table_name("table", name)


def test_names_that_are_cut_stay_apart() -> None:
    long = ["ü" * 63, "ü" * 62 + "ä"]
    names = [Names().table("public", name) for name in long]
    assert len(set(names)) == 2
    assert {len(name) for name in names} == {128}


@given(NAMES.filter(lambda name: len(name.encode()) < 255))
def test_a_column_has_a_name_that_can_be_had(name: str) -> None:
    check_column_names([Names().column("public", "t", name)], ())


def test_tables_and_columns_are_renamed() -> None:
    names = Names({"public.t": "orders", "t._id": "key", 'a."b.c"': "abc", "u": "v"})
    assert names.table("public", "t") == "orders"
    assert names.table("a", "b.c") == "abc"
    assert names.table("public", "u") == "v"
    assert Names({"public.t._id": "key"}).column("public", "t", "_id") == "key"
    assert Names().column("public", "t", "_id") == "x_id"
    assert names.unused([table(1, "public", "t", "_id"), table(2, "a", "b.c")]) == [
        "public.u",
        "t._id",
    ]


def test_a_clash_is_told_of_each_table() -> None:
    tables = [
        table(1, "public", "a", "id"),
        table(2, "sales", "b", "id"),
        table(3, "public", "c", "id", "Id"),
        table(4, "public", "d", "_x", "x_x"),
        table(5, "public", "e", "id"),
    ]
    found = Names({"sales.b": "a"}).clashes(tables)
    assert set(found) == {1, 2, 3, 4}
    assert found[1].reason == "sales.b would also be named 'a' here"
    assert found[2].reason == "public.a would also be named 'a' here"
    assert "'Id' differs from 'id' only in case" in found[3].reason
    assert "'x_x' appears twice" in found[4].reason


def test_the_renames_that_a_clash_advises_resolve_it() -> None:
    strange = table(
        5, "Sales.Q", 'it"s', "a.b", "A.B", "a.b2", "_c", "x_c", "tab\tin it", "ID", "id"
    )
    tables = [
        table(1, "public", "t", "id", "ID"),
        table(2, "public", "a", "id"),
        table(3, "sales", "b", "id"),
        table(4, "more", "c", "id"),
        strange,
    ]
    given = {"sales.b": "a", "more.c": "a"}
    found = Names(given).clashes(tables)
    assert found[1].helps == ("--rename public.t.ID=id2",)
    assert found[3].helps == ("--rename sales.b=a3",)
    advised = [words for oid in (1, 3, 4, 5) for each in found[oid].helps for words in [each]]
    texts = [shlex.split(each) for each in advised]
    assert all(words[0] == "--rename" and len(words) == 2 for words in texts)
    pairs = parse_pairs("--rename", [words[1] for words in texts])
    names = Names(given | pairs)
    assert names.clashes(tables) == {}
    assert names.unused(tables) == []


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", 'a."b', '"a"b', "a..b"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(BadRename, match="is no table name"):
        split_name(text)


@pytest.mark.parametrize(
    ("source", "name"), [("a.b", "_x"), ("a.b.c", "_x"), ("a.b.c.d", "x"), ("a.b", "")]
)
def test_a_rename_that_cannot_be_is_refused(source: str, name: str) -> None:
    with pytest.raises(BadRename, match="rename of"):
        Names({source: name})
