"""The expressions of which random queries are made, by the kind of their value.

A letter in braces stands for an expression of that kind: integer, float, decimal (E), boolean,
text (s), binary (x), date, timestamp, timestamp with zone (Z), lists of integers (L) and of texts
(K), struct (S), map (M), list of structs (O); ``p`` for a predicate. What may overflow or not parse
is inside ``try``, so that no query fails because of the rows that are looked at first.
"""

from __future__ import annotations

from collections.abc import Sequence

KINDS = {
    **dict.fromkeys(["id", "g", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"], "i"),
    "f32": "f", "f64": "f", "b": "b", "s": "s", "x": "x", "d10": "E", "d38": "E", "d4": "E",
    "day": "d", "t": "t", "utc": "Z", "berlin": "Z", "li": "L", "ls": "K", "st": "S", "m": "M",
    "sl": "O",
}  # fmt: skip
LITERALS: dict[str, Sequence[str]] = {
    "i": [
        "0", "1", "-1", "3", "7", "127", "-128", "255", "32767", "65535", "2147483647",
        "-2147483648", "4294967295", "9223372036854775807", "-9223372036854775808",
        "18446744073709551615", "2.5", "2::TINYINT", "3::UBIGINT", "40", "300", "NULL::INTEGER",
    ],
    "f": [
        "'nan'::DOUBLE", "'inf'::DOUBLE", "'-inf'::FLOAT", "0.0::DOUBLE", "-0.0::DOUBLE", "0.1",
        "0.1::FLOAT", "-2.5::DOUBLE", "1", "16777217", "1e300::DOUBLE", "NULL::DOUBLE",
    ],
    "E": [
        "0", "1.5", "-0.5", "9.99::DECIMAL(10,2)", "0.05::DECIMAL(38,10)", "12.3", "3",
        "NULL::DECIMAL(4,1)",
    ],
    "b": [
        "true", "false", "NULL::BOOLEAN",
    ],
    "x": [
        r"'\x00'::BLOB", "'ab'::BLOB", "''::BLOB", r"'\xFF\xFE'::BLOB",
    ],
    "d": [
        "DATE '2024-02-29'", "DATE '1970-01-01'", "DATE '0001-01-01'", "DATE '9999-12-31'",
        "NULL::DATE",
    ],
    "t": [
        "TIMESTAMP '2024-02-29 12:00:00.000001'", "TIMESTAMP '1970-01-01'", "DATE '2024-02-28'",
        "TIMESTAMP '2024-03-31 01:30:00'", "TIMESTAMP '9999-12-31 23:59:59.999999'",
        "TIMESTAMP_S '2024-02-28 01:00:00'",
    ],
    "Z": [
        "TIMESTAMPTZ '2024-10-27 02:30:00+02:00'", "TIMESTAMPTZ '2024-02-29 12:00:00.000001+00'",
        "TIMESTAMPTZ '1970-01-01 00:00:00+00'", "TIMESTAMPTZ '2024-03-31 03:30:00 Europe/Berlin'",
    ],
    "L": [
        "[1, 2]", "[]::INTEGER[]", "[NULL, 3]::INTEGER[]",
    ],
    "K": [
        "['a']", "['', NULL]", "[]::VARCHAR[]",
    ],
    "S": [
        "{'a': 1::BIGINT, 'b': 'a', 'n': {'c': 0.5::DOUBLE, 'd': [1::SMALLINT]}}",
    ],
    "M": [
        "MAP {'a': 1::BIGINT}", "MAP {}::MAP(VARCHAR, BIGINT)",
    ],
    "O": [
        "[{'k': 1::INTEGER, 'v': 'a'}]",
    ],
}  # fmt: skip
FORMS: dict[str, Sequence[str]] = {
    "i": [
        "try_cast({i}::HUGEINT + {i}::HUGEINT AS BIGINT)",
        "abs(try_cast({i} AS SMALLINT)::INTEGER)", "length({s})", "try_cast({i} AS SMALLINT) % 7",
        "try_cast({s} AS INTEGER)", "len({L})", "{L}[1]", "CASE WHEN {b} THEN {i} ELSE {i} END",
        "coalesce({i}, {i})", "year({t})", "month({d})", "dayofweek({d})", "hour({Z})",
        "try(date_diff('day', {t}, {t}))", "{S}.a", "{M}['a']", "list_position({L}, 3)",
        "cardinality({M})", "octet_length({x})", "{S}.n.d[1]", "{O}[1].k", "hash({i}) % 5",
        "nullif({i}, {i})", "sign({i})", "ascii({s})", "epoch_us({t}) % 1000", "{S}['a']",
        "greatest({i}, {i})", "try_cast({f} AS INTEGER)", "list_max({L})",
    ],
    "f": [
        "({f} + {f})", "({f} * 2)", "round({f}, 1)", "sqrt(abs({f}))", "{i}::DOUBLE",
        "{E}::DOUBLE", "try_cast({s} AS DOUBLE)", "{S}.n.c", "coalesce({f}, {f})", "-({f})",
        "floor({f})", "CASE WHEN isnan({f}) THEN 0 ELSE {f} END", "try_cast({f} AS FLOAT)",
    ],
    "E": [
        "try({E} + 1.5)", "try(({E}) * 2)", "round({E}, 1)", "try_cast({i} AS DECIMAL(20,3))",
        "-({E})", "coalesce({E}, 0)", "try_cast({f} AS DECIMAL(30,4))",
    ],
    "b": [
        "{p}", "NOT {b}", "coalesce({b}, false)",
    ],
    "s": [
        "upper({s})", "lower({s})", "substr({s}, 1, 2)", "({s} || {s})", "replace({s}, 'a', 'é')",
        "reverse({s})", "concat_ws('-', {s}, {s})", "left({s}, 1)", "trim({s})", "{i}::VARCHAR",
        "regexp_replace({s}, '[a-c]', '_', 'g')", "strftime({t}, '%Y-%m')",
        "array_to_string({K}, ',')", "hex({x})", "md5({s})", "{S}.b", "{E}::VARCHAR",
        "{f}::VARCHAR", "{t}::VARCHAR", "{Z}::VARCHAR", "{L}::VARCHAR", "{S}::VARCHAR",
        "{M}::VARCHAR", "{d}::VARCHAR", "{K}[1]", "printf('%d', try_cast({i} AS BIGINT))",
        "regexp_extract({s}, '(.)b', 1)", "lpad({s}, 3, '*')", "{O}[1].v", "coalesce({s}, {s})",
        "typeof({i})", "string_split({s}, 'b')[1]", "nfc_normalize({s})",
        "strftime({Z}, '%d.%m. %H:%M')",
    ],
    "x": [
        "encode({s})", "({x} || {x})", "coalesce({x}, {x})",
    ],
    "d": [
        "try({d} + 1)", "try(date_trunc('month', {d})::DATE)", "try({t}::DATE)",
        "try(last_day({d}))",
    ],
    "t": [
        "try(date_trunc('hour', {t}))", "try({t} + INTERVAL 1 MONTH)", "{d}::TIMESTAMP",
        "coalesce({t}, {t})", "try(timezone('Europe/Berlin', {Z}))",
        "try(time_bucket(INTERVAL 7 DAY, {t}))", "try({Z}::TIMESTAMP)",
    ],
    "Z": [
        "try(timezone('Asia/Tokyo', {t}))", "try({Z} + INTERVAL 1 DAY)",
        "try(date_trunc('day', {Z}))", "try({t}::TIMESTAMPTZ)",
    ],
    "L": [
        "list_sort({L})", "list_filter({L}, lambda e: e > 0)",
        "list_transform({L}, lambda e: e % 3)", "{L}[1:2]", "list_concat({L}, {L})",
        "map_values({M})", "[{i}, {i}]", "list_reverse({L})", "list_sort(list_distinct({L}))",
        "list_transform({O}, lambda e: e.k)",
    ],
    "K": [
        "map_keys({M})", "string_split({s}, '')", "list_transform({K}, lambda e: e || 'z')",
        "[{s}]", "{K}[2:]",
    ],
    "S": [
        "struct_pack(a := {i}, b := {s}, n := {S}.n)",
    ],
    "M": [
        "map_from_entries([(k, 1::BIGINT) FOR k IN ['q', 'r']])", "MAP {'a': {i}::HUGEINT}",
    ],
    "O": [
        "{O}[1:1]", "[struct_pack(k := 1, v := {s})]",
    ],
}  # fmt: skip
COMPARED = "ifEsxdtZ"
PREDICATES = [
    "{i} IN (1, 2, NULL)", "{i} NOT IN (0, 3, 300)", "{s} IN ('a', 'é', '')",
    "{s} NOT IN ('a', NULL)", "{s} LIKE 'a%'", "{s} LIKE '%b'", "{s} NOT LIKE '_'",
    "{s} ILIKE 'A%'", r"{s} LIKE 'a\_%' ESCAPE '\'", "regexp_matches({s}, '^[a-z]+$')",
    "{s} SIMILAR TO 'a.*'", "starts_with({s}, 'a')", "contains({s}, 'b')", "isnan({f})",
    "isfinite({f})", "list_contains({L}, {i})", "{L} = {L}", "{K} IS NOT DISTINCT FROM {K}",
    "{S} = {S}", "{S}.a > {i}", "{S}.b = {s}", "{S}.n.c < {f}", "{M} IS NULL", "{S} IS NOT NULL",
    "{S}.n IS NULL", "{b}", "{b} IS TRUE", "{b} = true", "{b} IS DISTINCT FROM {b}",
    "map_contains({M}, 'a')", "len({O}) > 1", "{s} > {s} COLLATE NOCASE",
    "{i} BETWEEN {i} AND {i}", "{f} BETWEEN {f} AND {f}", "{t} BETWEEN {t} AND {t}",
    "{s} BETWEEN 'a' AND 'b'", "({i}, {s}) = ({i}, {s})", "({i}, {s}) IN ((1, 'a'), (2, 'b'))",
    "{d} IN (DATE '2024-02-28', DATE '2024-02-29')", "{x} IN (''::BLOB, 'ab'::BLOB)",
    "{f} IN (0.0, 'nan'::DOUBLE, 2.5)", "{E} IN (0, 1.5, 0.05)",
    "try({t} > TIMESTAMP_NS '2024-02-28 00:10:00.000000001')", "{i}::VARCHAR = '1'",
    "{t}::DATE = {d}", "{L} IN ([1], [2, 3])", "year({t}) = 2024", "{O} = {O}",
]  # fmt: skip
AGGREGATES = [
    "count(*)", "count({s})", "count(DISTINCT {s})", "sum({i})", "min({i})", "max({s})",
    "min({s})", "max({f})", "min({f})", "max({t})", "min({d})", "avg({i})", "bool_or({b})",
    "bool_and({b})", "sum(try_cast({E} AS DECIMAL(18,2)))", "list_sort(list({i}))",
    "list_sort(list({s}), 'DESC', 'NULLS LAST')", "list_sort(list(DISTINCT {s}))",
    "array_to_string(list_sort(list({s})), ',')", "median(try_cast({i} AS INTEGER))",
    "quantile_disc({i}, 0.3)", "bit_xor(try_cast({i} AS INTEGER))", "max({E})", "min({x})",
    "max({Z})", "sum(DISTINCT {i})", "count(*) FILTER (WHERE {p})", "max({S})",
    "count(DISTINCT {L})", "count_if({p})", "histogram({s})", "max({s}) FILTER ({p})",
]  # fmt: skip
RANKED = [
    "row_number()",
    "rank()",
    "dense_rank()",
    "ntile(3)",
    "percent_rank()",
    "cume_dist()",
]  # fmt: skip
FRAMED = [
    "lag({i}, 1)", "lead({s}, 2, 'none')", "first_value({s})", "sum(try_cast({i} AS INTEGER))",
    "count(*)", "max({t})", "last_value({E})", "nth_value({i}, 2)", "count(DISTINCT {s})",
    "min({f}) FILTER (WHERE {p})", "list({i})", "any_value({s})",
]  # fmt: skip
FRAMES = [
    "", "", "ROWS BETWEEN 2 PRECEDING AND CURRENT ROW",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING",
    "GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING EXCLUDE CURRENT ROW",
]  # fmt: skip
JOINS = [
    "JOIN",
    "LEFT JOIN",
    "RIGHT JOIN",
    "FULL JOIN",
    "SEMI JOIN",
    "ANTI JOIN",
]  # fmt: skip
