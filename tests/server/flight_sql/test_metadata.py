"""The metadata of Flight SQL: exact schemas, keys, types, facts and patterns."""

from __future__ import annotations

import re

import duckdb
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.errors import BadRequest
from ingester.protobuf import varint_field
from ingester.server.flight_sql import metadata, sql_info, type_info
from ingester.server.flight_sql.messages import packed
from tests.drivers.all_types import all_types
from tests.drivers.wire import Table, create, put
from tests.server.flight_sql.raw import ask, command

KEYED = pa.schema(
    [
        pa.field("b", pa.int64(), nullable=False),
        pa.field("a", pa.string(), nullable=False),
        pa.field("v", pa.float64()),
    ]
)


def test_a_table_has_its_primary_key_and_no_foreign_keys(
    client: fl.FlightClient, table: Table
) -> None:
    create(client, table, KEYED, primary_key=["a", "b"])
    found = ask(client, "CommandGetPrimaryKeys", (2, table[0]), (3, table[1]))
    keys = found.select(["column_name", "key_sequence"]).to_pylist()
    assert keys == [
        {"column_name": "a", "key_sequence": 1},
        {"column_name": "b", "key_sequence": 2},
    ]
    assert ask(client, "CommandGetPrimaryKeys", (3, "nosuch")).num_rows == 0
    for name in ("ExportedKeys", "ImportedKeys", "CrossReference"):
        assert ask(client, f"CommandGet{name}", (3, table[1])).num_rows == 0


def test_filters_by_catalogue_and_type_hold(client: fl.FlightClient, table: Table) -> None:
    put(client, table, pa.record_batch({"n": [1]}))
    own = (2, table[0]), (3, table[1])
    assert ask(client, "CommandGetTables", (1, "ingester"), *own).num_rows == 1
    assert ask(client, "CommandGetTables", (4, "VIEW"), (4, "TABLE"), *own).num_rows == 1
    assert ask(client, "CommandGetTables", (4, "VIEW"), *own).num_rows == 0
    for other in ("", "other", "INGESTER"):
        assert ask(client, "CommandGetTables", (1, other), *own).num_rows == 0
        assert ask(client, "CommandGetDbSchemas", (1, other)).num_rows == 0
    assert ask(client, "CommandGetCatalogs").to_pylist() == [{"catalog_name": "ingester"}]


def test_every_fact_is_told_and_unknown_ones_are_left_out(client: fl.FlightClient) -> None:
    found = ask(client, "CommandGetSqlInfo").to_pylist()
    told = {each["info_name"]: each["value"] for each in found}
    expected = {key: fact if fact != {} else [] for key, fact in sql_info.FACTS.items()}
    assert told == expected
    assert {*range(12), 100, 101, *range(500, 577)} == set(told)
    asked = packed("CommandGetSqlInfo", b"".join(varint_field(1, n) for n in (504, 9999, 0)))
    some = client.get_flight_info(fl.FlightDescriptor.for_command(asked))
    names = client.do_get(some.endpoints[0].ticket).read_all()["info_name"].to_pylist()
    assert names == [504, 0]


def test_the_keywords_are_duckdbs_reserved_words() -> None:
    found = duckdb.connect().execute(
        "SELECT upper(keyword_name) FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
    )
    assert sorted(sql_info.KEYWORDS) == sorted(name for (name,) in found.fetchall())


def test_the_functions_exist_in_duckdb() -> None:
    names = [*sql_info.FACTS[509], *sql_info.FACTS[510], *sql_info.FACTS[512]]  # type: ignore[misc]
    functions = duckdb.execute("SELECT upper(function_name) FROM duckdb_functions()").fetchall()
    known = {name for (name,) in functions}
    assert {name for name in names if name not in known} <= {"EXTRACT", "CURRENT_DATE"}


def test_types_are_listed_by_code_and_name(client: fl.FlightClient) -> None:
    found = ask(client, "CommandGetXdbcTypeInfo").select(["data_type", "type_name"]).to_pylist()
    pairs = [tuple(each.values()) for each in found]
    assert pairs == sorted(pairs)
    for code, name in ((3, "DECIMAL"), (-7, "BOOLEAN")):
        asked = packed("CommandGetXdbcTypeInfo", varint_field(1, code))
        told = client.get_flight_info(fl.FlightDescriptor.for_command(asked))
        some = client.do_get(told.endpoints[0].ticket).read_all()
        assert some["type_name"].to_pylist() == [name]


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_the_names_of_types_are_duckdbs(unit: str) -> None:
    schema = all_types(unit).schema
    relation = duckdb.from_arrow(schema.empty_table())
    for field, known in zip(schema, relation.types, strict=True):
        if not pa.types.is_nested(field.type):
            assert type_info.type_name(field.type) == str(known).partition("(")[0], field


def test_a_command_that_is_cut_is_refused(client: fl.FlightClient) -> None:
    whole = command("CommandGetTables", (2, "it")).command
    for end in range(len(whole) - 4, len(whole)):
        with pytest.raises(pa.ArrowInvalid, match="not a protobuf message"):
            client.get_flight_info(fl.FlightDescriptor.for_command(whole[:end]))


def _regex(pattern: str) -> re.Pattern[str]:
    tokens = re.findall(r"\\[\s\S]|[\s\S]", pattern)
    special = {"%": ".*", "_": "."}
    return re.compile(
        "".join(
            special.get(token) or re.escape(token[1:] if len(token) > 1 else token)
            for token in tokens
        ),
        re.DOTALL,
    )


TEXTS = st.text(alphabet="ab%_\\\n", max_size=8)


@given(TEXTS, TEXTS)
def test_a_pattern_matches_as_its_regular_expression(pattern: str, name: str) -> None:
    found = {name} if _regex(pattern).fullmatch(name) else set()
    assert metadata.matching([name], pattern) == found


def test_a_hostile_pattern_takes_no_time_and_a_long_one_is_refused() -> None:
    """Python's regular expression for this pattern would take years."""
    assert metadata.matching(["a" * 127 + "b"], "%a" * 500) == set()
    with pytest.raises(BadRequest, match="1024"):
        metadata.matching([], "%" * 1025)
