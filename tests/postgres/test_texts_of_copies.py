"""A copy's values as PostgreSQL would write them, and the hashes of texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ingester.postgres.types import Policy, arrow_values, column_type
from ingester.postgres.verify.compared_texts import AskedColumn, copy_texts, expression, parse_block
from ingester.postgres.verify.differences import texts_of
from ingester.postgres.verify.row_hashes import LONG, RangeSums, combine, hash_texts
from tests.postgres.cluster import Cluster, serve_or_skip

ROWS = 400
DAYS = "('0001-01-01'::date + (random() * 3652058)::int)"
MOMENT = f"({DAYS} + random() * interval '1 day')"
SIGN = "(CASE WHEN random() < 0.5 THEN -1 ELSE 1 END)"
CHARACTERS = (
    "(SELECT string_agg(chr((1 + random() * 126)::int) || CASE WHEN random() < 0.2 THEN 'ü€𝄞'"
    " ELSE '' END, '') FROM generate_series(0, (random() * {})::int) WHERE i = i)"
)
KINDS: dict[str, tuple[str, list[str]]] = {
    # The type, a random value of row i, and boundary values.
    "bool": ("random() < 0.5", []),
    "int2": ("(random() * 65535 - 32768)::int", ["-32768", "32767"]),
    "int4": ("(random() * 4e9 - 2e9)::bigint", ["-2147483648", "2147483647"]),
    "int8": ("(random() * 1.8e19 - 9e18)::numeric(19)", ["-9223372036854775808"]),
    "oid": ("(random() * 4e9)::bigint::oid", ["4294967295"]),
    "float4": (
        f"({SIGN} * power(10, random() * 76 - 38))::float4",
        ["NaN", "-0", "0", "Infinity", "-Infinity", "1e-45", "3.4028235e38", "0.1"],
    ),
    "float8": (
        f"{SIGN} * power(10, random() * 600 - 300)",
        ["NaN", "-0", "0", "Infinity", "-Infinity", "5e-324", "1.7976931348623157e308", "1e15"],
    ),
    "numeric(12,3)": (f"{SIGN} * random() * power(10, random() * 9)", ["0", "-0.001"]),
    "numeric(38,0)": (f"{SIGN} * power(10, random() * 37)::numeric", ["9" * 38, "-" + "9" * 38]),
    "numeric(38,38)": (f"{SIGN} * random()::numeric", ["-0." + "0" * 37 + "1"]),
    "numeric": (f"{SIGN} * power(10, random() * 90 - 45)::numeric", ["1.10", "-0.0", "1e50"]),
    "text": (CHARACTERS.format(30), ["", "\\N", "\\", "\\\\.", "NULL", "a\tb\r\nc\b\f\v", "é" * 9]),
    "varchar(40)": (CHARACTERS.format(7), ["", " x "]),
    "char(9)": ("substr(md5(random()::text), 1, (random() * 9)::int)", ["", "ab"]),
    "bytea": ("decode(md5(random()::text), 'hex')", ["", "\\x00ff5c"]),
    "date": (DAYS, ["0001-01-01", "9999-12-31", "1970-01-01"]),
    "timestamp": (MOMENT, ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"]),
    "timestamptz": (
        f"{MOMENT}::timestamp AT TIME ZONE 'Europe/Berlin'",
        ["2026-03-29 02:30:00.000001+02", "1969-12-31 23:59:59.9+00", "9999-12-31 23:00+00"],
    ),
    "time": ("(random() * interval '1 day')::time", ["24:00:00"]),
    "timetz": ("(random() * interval '1 day')::time", ["12:00:00.5+05:30"]),
    "interval": ("random() * interval '1000 days 3 mons'", ["-1 year 2 days -0.5 sec"]),
    "uuid": ("md5(random()::text)::uuid", []),
    "jsonb": ("jsonb_build_object('k', random(), 't', E'\\t\"\\\\')", ["null", '"\\n"']),
    "int[]": ("ARRAY[[(random() * 9)::int, NULL]]", ["{}"]),
    "text[]": (f"ARRAY[{CHARACTERS.format(3)}, 'NULL', NULL, '']", ["{}"]),
    "inet": ("('10.0.0.0'::inet + (random() * 65535)::int)", ["::1/64"]),
    "money": ("(random() * 1000)::numeric::money", ["-1.5"]),
    "bit(5)": ("(random() * 31)::int::bit(5)", []),
    '"char"': ("chr((33 + random() * 90)::int)", [""]),
    "point": ("point(random(), -random())", []),
    "mood": ("(ARRAY['so so', 'gut'])[1 + (random() > 0.5)::int]::mood", []),
    "degrees": ("random() * 90", ["NaN", "-0"]),
    "later": (f"{DAYS}", ["1999-12-31 12:00:00.25"]),
}
WITHOUT = {
    # Values without a counterpart in the copy, to which the policy applies.
    "date": ["infinity", "-infinity", "10000-01-01", "0044-03-15 BC"],
    "timestamp": ["infinity", "-infinity", "10000-01-01 00:00", "0044-03-15 12:00 BC"],
    "timestamptz": ["infinity", "0044-03-15 12:00 BC", "10000-01-01 00:00+00"],
    "numeric(12,3)": ["NaN"],
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serve_or_skip(tmp_path_factory.mktemp("postgres")) as running:
        running.run(
            "CREATE TYPE mood AS ENUM ('so so', 'gut')",
            "CREATE DOMAIN degrees AS float8",
            "CREATE DOMAIN later AS timestamp",
        )
        yield running


class Column:
    """A column as the catalog describes it."""

    def __init__(self, name: str, base_oid: int, base_modifier: int) -> None:
        self.name, self.base_oid, self.base_modifier = name, base_oid, base_modifier


def columns_of(connection: Any, table: str) -> list[tuple[Column, int]]:
    """Return each column by the base type of its domain, with its own type."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT attname, CASE typtype WHEN 'd' THEN typbasetype ELSE t.oid END::bigint,"
            " atttypmod, t.oid::bigint FROM pg_attribute a JOIN pg_type t ON t.oid = atttypid"
            " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
            (table,),
        )
        return [(Column(*row[:3]), row[3]) for row in cursor.fetchall()]


def source_and_copy(
    connection: Any, table: str, policy: Policy
) -> Iterator[tuple[str, list[bytes | None], list[bytes | None]]]:
    """Yield the texts of each column, from the source and from its copy."""
    import io

    import psycopg2.extensions

    columns = columns_of(connection, table)
    kinds = [column_type(column.base_oid, column.base_modifier, policy) for column, _ in columns]
    asked = [
        AskedColumn(column.name, column.base_oid, kind.arrow, kind.policy == "null")
        for (column, _), kind in zip(columns, kinds, strict=True)
    ]
    out = io.BytesIO()
    with connection.cursor() as cursor:
        oids = tuple(oid for _, oid in columns)
        as_sent = psycopg2.extensions.new_type(oids, "AS_SENT", lambda text, cursor: text)
        psycopg2.extensions.register_type(as_sent, cursor)
        names = ", ".join(f'"{column.name}"' for column in asked)
        cursor.execute(f"SELECT {names} FROM {table} ORDER BY id")
        rows = cursor.fetchall()
        wanted = ", ".join(expression(column, f'"{column.name}"') for column in asked)
        cursor.copy_expert(f"COPY (SELECT {wanted} FROM {table} ORDER BY id) TO STDOUT", out)
    source = parse_block(out.getvalue(), asked)
    for at, column in enumerate(asked):
        copy = copy_texts(arrow_values(kinds[at], [row[at] for row in rows]))
        assert np.array_equal(hash_texts(copy), hash_texts(source[at]))
        places = range(len(rows))
        yield (
            column.name,
            [source[at].text(row) for row in places],
            [copy.text(row) for row in places],
        )


def test_random_values_of_each_type_are_written_as_the_server_writes_them(
    cluster: Cluster,
) -> None:
    from ingester.postgres.connection import connect

    names = [f"c{at}" for at in range(len(KINDS))]
    declared = ", ".join(f"{name} {kind}" for name, kind in zip(names, KINDS, strict=True))
    values = ", ".join(
        f"CASE WHEN random() < 0.1 THEN NULL ELSE {value} END" for value, _ in KINDS.values()
    )
    cluster.run(
        f"CREATE TABLE kinds (id int, {declared})",
        f"INSERT INTO kinds SELECT i, {values} FROM generate_series(1, {ROWS}) i",
    )
    connection = connect(cluster.dsn)
    try:
        with connection.cursor() as cursor:
            for name, (_, edges) in zip(names, KINDS.values(), strict=True):
                for number, edge in enumerate(edges):
                    cursor.execute(
                        f"UPDATE public.kinds SET {name} = %s WHERE id = %s", (edge, number + 1)
                    )
        compared = 0
        for _, source, copy in source_and_copy(connection, "public.kinds", "refuse"):
            assert copy == source
            assert len(set(source)) > 2 or b"t" in source
            compared += 1
        assert compared == len(KINDS) + 1
        for policy in ("null", "text"):
            table = f"public.without_{policy}"
            kinds = ", ".join(f"c{at} {kind}" for at, kind in enumerate(WITHOUT))
            cluster.run(f"CREATE TABLE {table} (id int, {kinds})")
            with connection.cursor() as cursor:
                for row in range(5):
                    cells = [dict(enumerate(texts)).get(row) for texts in WITHOUT.values()]
                    marks = ", ".join(["%s"] * len(cells))
                    cursor.execute(f"INSERT INTO {table} VALUES ({row}, {marks})", cells)
            for name, source, copy in source_and_copy(connection, table, policy):
                assert copy == source
                if name != "id":
                    assert (set(copy) == {None}) is (policy == "null")
    finally:
        connection.close()


def test_hashes_tell_texts_and_places_apart_and_sums_do_not_know_an_order() -> None:
    rng = np.random.default_rng(7)
    texts = [b"", None, b"\0", b"\0\0", b"a", b"b", b"ab", b"ba", b"12345678", b"123456780"]
    texts += [bytes([byte]) * n for n in (7, 8, 9, 16, LONG, LONG + 1, 5000) for byte in (0, 9)]
    long = bytes(rng.integers(0, 256, LONG + 40, np.uint8))
    texts += [long, long[:-1], long[:-1] + bytes([long[-1] ^ 1]), bytes([long[0] ^ 1]) + long[1:]]
    texts += [b"%d" % number for number in range(20_000)]
    hashes = hash_texts(texts_of(texts))
    assert len(set(hashes.tolist())) == len(texts) == len(set(texts))
    # A hash does not depend on the position or on neighbouring texts.
    again = rng.permutation(len(texts))
    assert (hash_texts(texts_of([texts[at] for at in again])) == hashes[again]).all()
    # For texts that differ in one digit, each hash bit is set in half of them.
    bits = np.unpackbits(hashes[-20_000:].view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
    assert (abs(bits - 0.5) < 0.02).all()
    swapped = [hash_texts(texts_of(column)) for column in ([b"x", b"y"], [b"y", b"x"])]
    assert combine(swapped)[0] != combine(swapped)[1]

    keys, rows = hashes, combine([hashes, hashes[::-1]])
    sums, other = RangeSums(256), RangeSums(256)
    sums.add(keys, rows)
    for part in np.array_split(again, 5):
        other.add(keys[part], rows[part])
    assert sums.rows == len(texts)
    assert not sums.differing(other).size
    # Two rows swap their values, within one range or between two.
    order = np.arange(len(texts))
    order[[100, 200]] = order[[200, 100]]
    swap = RangeSums(256)
    swap.add(keys, combine([hashes, hashes[::-1][order]]))
    assert swap.differing(sums).tolist() == sorted(set(sums.ranges_of(keys[[100, 200]]).tolist()))
