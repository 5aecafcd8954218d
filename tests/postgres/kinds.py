"""Stories from faults that were reported for other replicators."""

from __future__ import annotations

from tests.postgres.stories import EQUAL, LEFT, Phase, Story

ROWS = "SELECT g, 'v' || g FROM generate_series(1, 5) g"


def _table(name: str, columns: str = "id int PRIMARY KEY, v text", rows: str = ROWS) -> list[str]:
    return [f"CREATE TABLE {name} ({columns})", f"INSERT INTO {name} {rows}"]


def _equal(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, EQUAL)


def _story(name: str, before: list[str], *then: str, table: str | None = None) -> Story:
    """Return a story of a table that equals its copy before and after some statements."""
    table = table or f"public.{name}"
    return Story(name, [Phase(before, {table: EQUAL}), Phase(then, {table: EQUAL})])


def _poisoned(name: str, kind: str, good: str, bad: str) -> Story:
    """Return a story of a value that no column of the copy can hold, and that is later replaced."""
    table = f"public.{name}"
    made = _table(name, f"id int PRIMARY KEY, w {kind}", f"VALUES (1, {good}), (2, {good})")
    put = f"INSERT INTO {name} VALUES (77, {bad})"
    # The reason must name the column and the row's key.
    reason = r"(?s)(?=.*\bw\b)(?=.*77)"
    heal = f"UPDATE {name} SET w = {good} WHERE id = 77"
    phases = [(made, EQUAL), ([put], reason), ([heal], EQUAL)]
    return Story(name, [Phase(done, {table: wanted}) for done, wanted in phases])


MOVES = [
    _story(
        "shifted",
        [
            *_table("shifted", "id int PRIMARY KEY DEFERRABLE, v text"),
            "ALTER TABLE shifted REPLICA IDENTITY FULL",
        ],
        "UPDATE shifted SET id = id + 1",
        "UPDATE shifted SET id = 9 - id, v = v || 'x' WHERE id IN (3, 4, 5, 6)",
    ),
    _story(
        "swapped",
        _table("swapped"),
        "BEGIN; UPDATE swapped SET id = -1 WHERE id = 1; UPDATE swapped SET id = 1 WHERE id = 2;"
        " UPDATE swapped SET id = 2 WHERE id = -1; COMMIT",
        "BEGIN; DELETE FROM swapped WHERE id = 3; INSERT INTO swapped VALUES (3, 'reborn');"
        " UPDATE swapped SET id = 30 WHERE id = 3; INSERT INTO swapped VALUES (3, 'third'); COMMIT",
    ),
]
POISON = [
    Story(
        "keyless",
        [
            Phase([], {}),
            Phase(
                [
                    "CREATE TABLE keyless (id int, v text)",
                    "INSERT INTO keyless VALUES (1, 'a'), (2, 'b')",
                    # The table is not published, so the source accepts this update.
                    "UPDATE keyless SET v = 'c' WHERE id = 2",
                ],
                {"public.keyless": "key"},
            ),
            Phase(["ALTER TABLE keyless ADD PRIMARY KEY (id)"], _equal("public.keyless")),
        ],
    ),
    _poisoned("infinite", "timestamptz", "'2026-11-26 00:00+00'", "'infinity'"),
    _poisoned("far", "timestamp", "'2026-11-26 00:00'", "'20000-01-01 00:00'"),
    _poisoned("long_ago", "date", "'2026-11-26'", "'0044-03-15 BC'"),
    _poisoned("no_number", "numeric(10, 2)", "1.5", "'NaN'"),
    _story(
        "emptied",
        _table("emptied"),
        "BEGIN; INSERT INTO emptied VALUES (10, 'x'); TRUNCATE emptied;"
        " INSERT INTO emptied VALUES (1, 'new'), (11, 'y'); COMMIT",
    ),
    Story(
        "emptied_all",
        [
            Phase(
                [
                    *_table("referred"),
                    *_table("refers", "id int PRIMARY KEY REFERENCES referred, v text"),
                ],
                _equal("public.referred", "public.refers"),
            ),
            Phase(
                ["TRUNCATE referred CASCADE", "INSERT INTO referred VALUES (7, 'z')"],
                _equal("public.referred", "public.refers"),
            ),
        ],
    ),
]
MEMBERS = [
    Story("late", [Phase([], {}), Phase(_table("late"), _equal("public.late"))]),
    Story(
        "old_name",
        [
            Phase(_table("old_name"), _equal("public.old_name")),
            Phase(["ALTER TABLE old_name RENAME TO older"], _equal("public.older")),
        ],
    ),
    Story(
        "exchanged",
        [
            Phase(
                [*_table("one"), *_table("other", rows="VALUES (1, 'o')")],
                _equal("public.one", "public.other"),
            ),
            Phase(
                [
                    "BEGIN; ALTER TABLE one RENAME TO third; ALTER TABLE other RENAME TO one;"
                    " ALTER TABLE third RENAME TO other; COMMIT",
                    "INSERT INTO one VALUES (50, 'into the new one')",
                ],
                _equal("public.one", "public.other"),
            ),
        ],
    ),
    _story(
        "again",
        _table("again"),
        "BEGIN; DROP TABLE again; CREATE TABLE again (id int PRIMARY KEY, n bigint);"
        " INSERT INTO again VALUES (1, 2); COMMIT",
        "INSERT INTO again VALUES (2, 3)",
    ),
    Story(
        "gone",
        [
            Phase(_table("gone"), _equal("public.gone")),
            Phase(["DROP TABLE gone"], {"public.gone": LEFT}),
        ],
    ),
    Story(
        "logged",
        [
            Phase(
                # One transaction: the replicator must not publish the table in between.
                [
                    "; ".join(
                        ["BEGIN", *_table("logged"), "ALTER TABLE logged SET UNLOGGED", "COMMIT"]
                    )
                ],
                {"public.logged": "(?i)unlogged"},
            ),
            Phase(["ALTER TABLE logged SET LOGGED"], _equal("public.logged")),
        ],
    ),
    Story(
        "moved",
        [
            Phase(_table("moved"), _equal("public.moved")),
            Phase(
                [
                    "ALTER TABLE moved SET SCHEMA more",
                    "INSERT INTO more.moved VALUES (60, 'there')",
                ],
                _equal("more.moved"),
            ),
        ],
    ),
]
ALTERED = [
    _story("constant", _table("constant"), "ALTER TABLE constant ADD COLUMN c int DEFAULT 7"),
    _story(
        "volatile", _table("volatile"), "ALTER TABLE volatile ADD COLUMN c float8 DEFAULT random()"
    ),
    _story(
        "nothing",
        _table("nothing"),
        "ALTER TABLE nothing ADD COLUMN c int",
        "UPDATE nothing SET c = 5 WHERE id = 3",
    ),
    _story(
        "readded",
        _table("readded"),
        "BEGIN; ALTER TABLE readded DROP COLUMN v; ALTER TABLE readded ADD COLUMN v text; COMMIT",
        "INSERT INTO readded VALUES (6, 'six')",
    ),
    _story("dropped", _table("dropped"), "ALTER TABLE dropped DROP COLUMN v"),
    _story("renamed", _table("renamed"), "ALTER TABLE renamed RENAME COLUMN v TO w"),
    _story(
        "two_names",
        _table(
            "two_names",
            "id int PRIMARY KEY, v text, w text",
            "SELECT g, 'v', 'w' FROM generate_series(1, 5) g",
        ),
        "ALTER TABLE two_names RENAME v TO x; ALTER TABLE two_names RENAME w TO v;"
        " ALTER TABLE two_names RENAME x TO w",
        "INSERT INTO two_names VALUES (9, 'nine', 'neun')",
    ),
    _story(
        "widened",
        _table("widened", "id int PRIMARY KEY, n int", "SELECT g, g FROM generate_series(1, 5) g"),
        "ALTER TABLE widened ALTER COLUMN n TYPE bigint",
        "INSERT INTO widened VALUES (6, 5000000000)",
    ),
    _story(
        "key_widened",
        _table("key_widened"),
        "ALTER TABLE key_widened ALTER COLUMN id TYPE bigint",
        "INSERT INTO key_widened VALUES (5000000000, 'far')",
    ),
    _story(
        "retyped",
        _table("retyped", "id int PRIMARY KEY, n int", "SELECT g, g FROM generate_series(1, 5) g"),
        "ALTER TABLE retyped ALTER COLUMN n TYPE text USING 'n' || n",
    ),
    _story(
        "ddl_between",
        _table("ddl_between"),
        "BEGIN; INSERT INTO ddl_between VALUES (6, 'before');"
        " ALTER TABLE ddl_between ADD COLUMN c int DEFAULT 1;"
        " INSERT INTO ddl_between VALUES (7, 'after', 2); ALTER TABLE ddl_between DROP COLUMN v;"
        " DELETE FROM ddl_between WHERE id = 1; COMMIT",
    ),
]
CONDITIONS = [
    _story(
        "rekeyed",
        [*_table("rekeyed", "id int PRIMARY KEY, v text NOT NULL")],
        "BEGIN; ALTER TABLE rekeyed DROP CONSTRAINT rekeyed_pkey;"
        " ALTER TABLE rekeyed ADD PRIMARY KEY (v); COMMIT",
        "UPDATE rekeyed SET id = 100 WHERE v = 'v1'",
        "INSERT INTO rekeyed VALUES (100, 'second of its id')",
    ),
    Story(
        "unidentified",
        [
            Phase(_table("unidentified"), _equal("public.unidentified")),
            Phase(
                ["ALTER TABLE unidentified REPLICA IDENTITY NOTHING"],
                {"public.unidentified": "(?i)identity"},
            ),
            Phase(
                [
                    "ALTER TABLE unidentified REPLICA IDENTITY FULL",
                    "UPDATE unidentified SET v = 'full' WHERE id = 2",
                ],
                _equal("public.unidentified"),
            ),
        ],
    ),
    Story(
        "key_lost",
        [
            Phase(_table("key_lost"), _equal("public.key_lost")),
            Phase(
                ["ALTER TABLE key_lost DROP CONSTRAINT key_lost_pkey"], {"public.key_lost": "key"}
            ),
            Phase(
                ["ALTER TABLE key_lost ADD PRIMARY KEY (id)", "DELETE FROM key_lost WHERE id = 1"],
                _equal("public.key_lost"),
            ),
        ],
    ),
]
NAMES = [
    Story(
        "one_name",
        [
            Phase(
                [*_table("sales.items"), *_table('"sales.items"', rows="VALUES (1, 'public')")],
                _equal("sales.items", "public.sales.items"),
            ),
            Phase(
                ["UPDATE sales.items SET v = 's'", "UPDATE \"sales.items\" SET v = 'p'"],
                _equal("sales.items", "public.sales.items"),
            ),
        ],
    ),
    *(
        _story(
            name,
            _table(f'"{name}"', 'id int PRIMARY KEY, "_id" text'),
            f'UPDATE "{name}" SET "_id" = \'changed\' WHERE id = 2',
        )
        for name in ("_prisma_migrations", "Order Details", "Größen", "select")
    ),
]
_EXTREMES = (
    f"VALUES (1, -32768, -2147483648, {-(2**63)}, '-0', '-0', '-{'9' * 28}.{'9' * 10}', false, '',"
    " '', '0001-01-01', '0001-01-01 00:00', '0001-01-01 00:00+00'),"
    f" (2, 32767, 2147483647, {2**63 - 1}, '-3.4028235e38', '1.7976931348623157e308',"
    " '0.0000000001', true, 'NULL', '\\x00ff', '9999-12-31', '9999-12-31 23:59:59.999999',"
    " '9999-12-31 23:59:59.999999+00'),"
    " (3, 0, 0, 0, 'NaN', 'NaN', 0, null, '\\N', '\\x', '1582-10-10', '1582-10-10', '1969-12-31'),"
    " (4, 0, 0, 0, '-Infinity', 'Infinity', 0, null, 'é😀', null, null, null, null),"
    " (5, 0, 0, 0, '1e-45', '5e-324', -0.5, null, null, null, null, null, null)"
)
VALUES = [
    _story(
        "extremes",
        _table(
            "extremes",
            "id int PRIMARY KEY, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8,"
            " n numeric(38, 10), b bool, t text, x bytea, d date, at timestamp, utc timestamptz",
            _EXTREMES,
        ),
        "DELETE FROM extremes",
        f"INSERT INTO extremes {_EXTREMES}",
        "UPDATE extremes SET i2 = -1 - i2, i4 = -1 - i4, i8 = -1 - i8, n = -n, f4 = -f4, f8 = -f8",
    ),
    _story(
        "labelled",
        [
            "CREATE TYPE mood AS ENUM ('sad', 'ok')",
            *_table("labelled", "id int PRIMARY KEY, m mood", "VALUES (1, 'sad'), (2, 'ok')"),
        ],
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
    ),
    _story(
        "domain_kept",
        [
            "CREATE DOMAIN even AS bigint CHECK (VALUE % 2 = 0)",
            *_table("domain_kept", "id int PRIMARY KEY, e even", "VALUES (1, 2), (2, 4)"),
        ],
        "UPDATE domain_kept SET e = 8 WHERE id = 1",
    ),
    _story(
        "large_values",
        [
            "CREATE TABLE large_values (id int PRIMARY KEY, a int, big text)",
            "ALTER TABLE large_values ALTER COLUMN big SET STORAGE EXTERNAL",
            "INSERT INTO large_values SELECT g, g, repeat('q', 9000) FROM generate_series(1, 5) g",
        ],
        "UPDATE large_values SET a = a + 1",
        "UPDATE large_values SET id = 100 WHERE id = 1",
    ),
]
GENERATED = [
    _story(
        "generated",
        _table(
            "generated",
            "id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED",
            "(id, n) VALUES (1, 2)",
        ),
        "UPDATE generated SET n = 8 WHERE id = 1",
    ),
    Story(
        "generated_key",
        [
            Phase(
                _table(
                    "generated_key",
                    "n int, k int GENERATED ALWAYS AS (n * 2) STORED PRIMARY KEY",
                    "(n) VALUES (1), (2)",
                ),
                {"public.generated_key": "(?i)generated"},
            )
        ],
    ),
]
"""Stories for PostgreSQL 12 and newer."""
STORIES = [*MOVES, *POISON, *MEMBERS, *ALTERED, *CONDITIONS, *NAMES, *VALUES, *GENERATED]
SCHEMAS = ["CREATE SCHEMA more", "CREATE SCHEMA sales", "CREATE SCHEMA roots"]

PUBLICATION = "chosen"
"""A publication made by an administrator: by partition root, and with part of some tables."""
PUBLISHED = [
    "CREATE ROLE limited LOGIN REPLICATION",
    "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO limited",
    "GRANT USAGE ON SCHEMA roots TO limited",
    f"CREATE PUBLICATION {PUBLICATION} WITH (publish_via_partition_root = true)",
]
_BY_ROOT = "roots.parts"


def _publish(what: str) -> str:
    return f"ALTER PUBLICATION {PUBLICATION} {what}"


def _part(number: int, *, of: str = _BY_ROOT) -> str:
    bounds = f"FOR VALUES FROM ({number * 10}) TO ({number * 10 + 10})"
    return f"CREATE TABLE {of}{number} PARTITION OF {of} {bounds}"


ROOTS = [
    Story(
        "parts",
        [
            Phase(
                [
                    f"CREATE TABLE {_BY_ROOT} (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
                    _part(0),
                    _part(1),
                    f"INSERT INTO {_BY_ROOT} SELECT g, 'v' FROM generate_series(0, 19) g",
                    _publish(f"ADD TABLE {_BY_ROOT}"),
                ],
                _equal(_BY_ROOT),
            ),
            Phase(
                [
                    "CREATE TABLE roots.joins (id int PRIMARY KEY, v text)",
                    "INSERT INTO roots.joins VALUES (20, 'x'), (21, 'y')",
                    f"ALTER TABLE {_BY_ROOT} ATTACH PARTITION roots.joins"
                    " FOR VALUES FROM (20) TO (30)",
                    f"ALTER TABLE {_BY_ROOT} DETACH PARTITION {_BY_ROOT}0",
                    f"UPDATE {_BY_ROOT} SET id = 25 WHERE id = 15",
                ],
                _equal(_BY_ROOT),
            ),
            Phase(
                [f"TRUNCATE {_BY_ROOT}1", f"INSERT INTO {_BY_ROOT} VALUES (11, 'w')"],
                _equal(_BY_ROOT),
            ),
        ],
    ),
    Story(
        "filtered",
        [
            Phase(
                [*_table("roots.filtered"), _publish("ADD TABLE roots.filtered WHERE (id > 1)")],
                {"roots.filtered": "(?i)filter"},
            ),
            Phase(
                [_publish("DROP TABLE roots.filtered"), _publish("ADD TABLE roots.filtered")],
                _equal("roots.filtered"),
            ),
        ],
    ),
    Story(
        "listed",
        [
            Phase([*_table("roots.listed"), _publish("ADD TABLE roots.listed")], {}),
            Phase(
                [_publish("DROP TABLE roots.listed"), _publish("ADD TABLE roots.listed (id)")],
                {"roots.listed": "(?i)column"},
            ),
        ],
    ),
    Story(
        "guarded",
        [
            Phase(
                [
                    *_table("roots.guarded"),
                    "ALTER TABLE roots.guarded ENABLE ROW LEVEL SECURITY",
                    _publish("ADD TABLE roots.guarded"),
                ],
                {"roots.guarded": "(?i)row.(level.)?security"},
            ),
            Phase(
                ["ALTER TABLE roots.guarded DISABLE ROW LEVEL SECURITY"], _equal("roots.guarded")
            ),
        ],
    ),
    Story(
        "joined",
        [
            Phase(_table("roots.joined"), {}),
            Phase([_publish("ADD TABLE roots.joined")], _equal("roots.joined")),
            Phase([_publish("DROP TABLE roots.joined")], {"roots.joined": LEFT}),
        ],
    ),
]
"""Stories for PostgreSQL 15 and newer."""
PUBLISHES_LESS = Story(
    "publishes less",
    [
        Phase([_publish("SET (publish = 'insert')")], {_BY_ROOT: "(?i)(update|delete|publish)"}),
    ],
)
