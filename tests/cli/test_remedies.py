"""What a command's error advises is done as the error says, and then the command succeeds.

``tests/house/test_remedies.py`` finds advice that no test follows.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.conftest import Run

_numbers = itertools.count()
LONG = 600_000
"""Rows that exceed the part of a pipe whose types are inferred, which is 4 MiB."""


class Case(NamedTuple):
    """A command that is refused, the advice, and the same command with the advice followed.

    ``{t}`` is a table of the case's own.
    """

    content: bytes
    refused: str
    advice: str
    helped: str
    rows: Any = None
    before: str = ""


def _lines(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


MANY = [str(n) for n in range(LONG)]
CASES = {
    "ordinary quotes": Case(
        _lines("v,w", '"a"b,1'),
        "write n {t} a.csv",
        "use --no-quotes",
        "write n {t} a.csv --no-quotes",
        [{"v": '"a"b', "w": 1}],
    ),
    "escaped quotes": Case(
        _lines("v,w", r'"say \"hi\"",1'),
        "write n {t} a.csv",
        "use --escape",
        r"write n {t} a.csv --escape \ ",
        [{"v": 'say "hi"', "w": 1}],
    ),
    "two delimiters": Case(
        _lines("a;b,c", "1;2,3"),
        "write n {t} a.csv",
        "give --delimiter",
        "write n {t} a.csv --delimiter ;",
        [{"a": 1, "b,c": "2,3"}],
    ),
    "a pipe whose numbers become text": Case(
        _lines("v,w", *(f"{n},1" for n in MANY), "x,1"),
        "write n {t} - --input-format csv",
        "write to a new table, with --column-types v=string",
        "write n {t}new - --input-format csv --column-types v=string",
    ),
    "a pipe whose column comes late": Case(
        _lines(*(f'{{"v":{n}}}' for n in MANY), '{"v":1,"w":2}'),
        "write n {t} - --input-format jsonl",
        "use --column-types w=TYPE",
        "write n {t} - --input-format jsonl --column-types w=int64",
    ),
    "a pipe whose number grows": Case(
        _lines('{"v":0.5}', *(f'{{"v":{n}}}' for n in MANY), '{"v":9007199254740993}'),
        "write n {t} - --input-format jsonl",
        "write to a new table, with --column-types v=TYPE",
        "write n {t}new - --input-format jsonl --column-types v=decimal(20,2)",
    ),
    "a decimal comma": Case(
        _lines("v;w", "1,5;1"),
        "write n {t} a.csv",
        "use --decimal-comma",
        "write n {t} a.csv --decimal-comma",
        [{"v": 1.5, "w": 1}],
        before="create n {t} v:double w:int64",
    ),
    "a name without an ending": Case(
        _lines("v", "1"),
        "write n {t} plain",
        "give --input-format",
        "write n {t} plain --input-format csv",
        [{"v": 1}],
    ),
    "bytes of another encoding": Case(
        b"v\nJos\xe9\n",
        "write n {t} a.csv",
        "such as --encoding latin-1",
        "write n {t} a.csv --encoding latin-1",
        [{"v": "José"}],
    ),
    "a file that says its encoding": Case(
        "v\nx\n".encode("utf-16"),
        "write n {t} a.csv",
        "use --encoding utf-16",
        "write n {t} a.csv --encoding utf-16",
        [{"v": "x"}],
    ),
    "an unknown encoding": Case(
        _lines("v", "x"),
        "write n {t} a.csv --encoding utf-7b",
        "use for example utf-16, latin-1",
        "write n {t} a.csv --encoding latin-1",
        [{"v": "x"}],
    ),
    "nanoseconds": Case(
        _lines('{"time":"2026-11-21T00:00:00.123456789Z"}'),
        "write n {t} a.jsonl",
        'create the table with timestamp_unit = "ns"',
        "write n {t}ns a.jsonl",
        before="create n {t}ns time:timestamp --timestamp-unit ns",
    ),
    "nanoseconds for a table of microseconds": Case(
        _lines("time", "2026-11-21T00:00:00.123456789Z"),
        "write n {t} a.csv",
        "create the table with 'ingester create --timestamp-unit ns'",
        "create n {t}ns time:timestamp --timestamp-unit ns",
        before="create n {t} time:timestamp",
    ),
    "two keys of one name": Case(
        _lines('{"o":{"a":1,"a":2}}'),
        "write n {t} a.jsonl",
        "--column-types o=string",
        "write n {t} a.jsonl --column-types o=string",
        [{"o": '{"a":1,"a":2}'}],
    ),
    "columns without types": Case(
        _lines("v", "1"),
        "create n {t}",
        "or --like FILE",
        "create n {t} --like a.csv",
    ),
    "an output without a format": Case(
        b"",
        "query n {t} --output x.what",
        "give --format",
        "query n {t} --output x.what --format csv",
        before="create n {t} v:int64",
    ),
    "a list of tokens": Case(
        b"",
        "tokens add reader --grant n:read",
        "say --file FILE",
        "tokens add reader --grant n:read --file tokens.json",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_advice_of_an_error_is_followed_and_helps(run: Run, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    table = f"remedy{next(_numbers)}"
    for file in ("a.csv", "a.jsonl", "plain"):
        (tmp_path / file).write_bytes(case.content)

    def command(text: str) -> tuple[int, str]:
        words = ["\\" if word == "\\" else word for word in text.format(t=table).split()]
        done = run(*words, stdin=case.content)
        return done.returncode, done.stdout.decode() + done.stderr.decode()

    if case.before:
        assert command(case.before)[0] == 0
    code, said = command(case.refused)
    assert code in (1, 2), said
    assert case.advice in said
    code, said = command(case.helped)
    assert code == 0, said
    if case.rows is not None:
        found = run("query", "n", table, "--format", "jsonl").stdout.decode()
        assert [json.loads(line) for line in found.splitlines()] == case.rows
