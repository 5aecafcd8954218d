"""Names of the source as SQL has them, for the commands that are run or shown.

Law of this file: pure; a name is quoted wherever SQL would read it otherwise.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_WORDS = """
all analyse analyze and any array as asc asymmetric authorization between bigint binary bit
boolean both case cast char character check coalesce collate collation column concurrently
constraint create cross current_catalog current_date current_role current_schema current_time
current_timestamp current_user dec decimal default deferrable desc distinct do else end except
exists extract false fetch float for foreign freeze from full grant greatest group grouping
having ilike in initially inner inout int integer intersect interval into is isnull join json
lateral leading least left like limit localtime localtimestamp national natural nchar none
normalize not notnull null nullif numeric offset on only or order out outer overlaps overlay
placing position precision primary real references returning right row select session_user setof
similar smallint some substring symmetric system_user table tablesample then time timestamp to
trailing treat trim true union unique user using values varchar variadic verbose when where
window with xmlattributes
"""
_RESERVED = frozenset(_WORDS.split())


def quoted(name: str) -> str:
    """A name as SQL has it."""
    if _PLAIN.fullmatch(name) and name not in _RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


def quoted_table(schema: str, name: str) -> str:
    """A table's name with its schema."""
    return f"{quoted(schema)}.{quoted(name)}"
