"""Types of columns, and values as deterministic SQL.

``{g}`` is a row's number. ``{s}`` is a number of the statement.
"""

from __future__ import annotations

from typing import NamedTuple

SCHEMAS = ("public", "s1", "s2")
ENUM, DOMAIN = "storm_mood", "storm_even"
MOODS = 3
SETUP = (
    *(f"CREATE SCHEMA {name}" for name in SCHEMAS[1:]),
    f"CREATE TYPE public.{ENUM} AS ENUM ('mood0', 'mood1', 'mood2')",
    f"CREATE DOMAIN public.{DOMAIN} AS bigint CHECK (VALUE % 2 = 0)",
)


class Kind(NamedTuple):
    """A type and an SQL expression for its values."""

    sql: str
    value: str
    widens: tuple[str, ...] = ()
    """Types that the column can be altered to without ``USING``."""
    poison: str | None = None
    """A value that no column of the copy can hold."""


_MD5 = "md5(({g} * 31 + {s})::text)"
_TIME = "timestamp '2026-01-01 00:00' + ({g} * 77 + {s}) * interval '1 minute 1 microsecond'"
KINDS = {
    "int2": Kind("smallint", "(({g} + {s}) % 1000)::smallint", ("int4", "int8")),
    "int4": Kind("integer", "({g} * 7919 + {s}) % 100000", ("int8", "numeric")),
    "int8": Kind("bigint", "{g}::bigint * 1000003 + {s}", ("numeric",)),
    "dec": Kind("numeric(14,3)", "(({g} * 31 + {s}) / 7.0)::numeric(14,3)", ("dec2", "numeric")),
    "dec2": Kind("numeric(20,5)", "(({g} * 31 + {s}) / 7.0)::numeric(20,5)", ("dec",)),
    "numeric": Kind("numeric", "({g} * 31 + {s}) / 8.0"),
    "float8": Kind("double precision", "({g} + {s}) / 3.0::float8"),
    "float4": Kind("real", "(({g} + {s}) / 3.0)::real", ("float8",)),
    "bool": Kind("boolean", "({g} + {s}) % 2 = 0"),
    "text": Kind("text", _MD5),
    "vc20": Kind("varchar(20)", f"left({_MD5}, 20)", ("text", "vc40")),
    "vc40": Kind("varchar(40)", _MD5, ("text",)),
    "char6": Kind("char(6)", f"left({_MD5}, (1 + ({{g}} + {{s}}) % 6)::int)", ("text",)),
    "time": Kind("timestamp", _TIME, ("timetz",), "'infinity'"),
    "timetz": Kind("timestamptz", f"({_TIME}) AT TIME ZONE 'UTC'", (), "'20000-01-01 00:00+00'"),
    "date": Kind("date", f"({_TIME})::date", ("time",), "'0044-03-15 BC'"),
    "bytea": Kind("bytea", f"decode({_MD5}, 'hex')"),
    "uuid": Kind("uuid", f"{_MD5}::uuid", ("text",)),
    "json": Kind("jsonb", "jsonb_build_object('g', {g}, 's', {s})"),
    "ints": Kind("integer[]", "ARRAY[{g}, {s}]"),
    "mood": Kind(f"public.{ENUM}", f"(enum_range(NULL::public.{ENUM}))[1 + ({{g}} + {{s}}) % 3]"),
    "even": Kind(f"public.{DOMAIN}", "({g} + {s}) / 2 * 2"),
    "ref": Kind("bigint", "NULL"),
    "big": Kind(
        "text", "(SELECT string_agg(md5(({g} * {s} + i)::text), '') FROM generate_series(1, 90) i)"
    ),
}
"""``big`` is incompressible and stored out of line; ``ref`` references another table."""
PLAIN = tuple(name for name in KINDS if name != "ref")


def value(kind: str, g: str, s: int) -> str:
    """Return an expression; for every third ``s`` it is null in each seventh row."""
    found = KINDS[kind].value.format(g=g, s=s)
    return f"CASE WHEN ({g} + {s}) % 7 = 0 THEN NULL ELSE {found} END" if s % 3 == 0 else found
