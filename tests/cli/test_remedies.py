"""What a command's error advises is done as the error says, and then the command succeeds.

``tests/house/test_remedies.py`` finds advice that no test follows.
"""

from __future__ import annotations

import itertools
import json
import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.client import Client, ClientError
from tests.cli.conftest import Run, run_command
from tests.drivers.daemon import Daemon, DaemonEnded
from tests.drivers.ports import free_port
from tests.drivers.secured import Secured

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
        "use --column-types w=int64",
        "write n {t} - --input-format jsonl --column-types w=int64",
    ),
    "a pipe whose number grows": Case(
        _lines('{"v":0.5}', *(f'{{"v":{n}}}' for n in MANY), '{"v":9007199254740993}'),
        "write n {t} - --input-format jsonl",
        "write to a new table, with --column-types v=",
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
    "a date without quotes": Case(
        b"",
        "query n {t} --filter d>=2026-11-21",
        "a date or time has single quotes: '2026-11-21'",
        "query n {t} --filter d>='2026-11-21'",
        before="create n {t} d:date",
    ),
    "a text in double quotes": Case(
        b"",
        'query n {t} --filter v="Hbf"',
        "a text has single quotes: 'Hbf'",
        "query n {t} --filter v='Hbf'",
        before="create n {t} v:string",
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


def test_a_column_that_a_copy_cannot_hold_is_left_out(run: Run, served: Daemon) -> None:
    far = pa.record_batch({"id": [1], "d": pa.array([2**31 - 1], pa.date32())})
    with Client(served.flight) as client:
        client.write("n", "far", far)
    follow = ["follow", "n", "far", "--into", "duckdb:c.duckdb", "--once"]
    refused = run(*follow)
    assert (refused.returncode, b"leave the column out (--columns)" in refused.stderr) == (1, True)
    assert run(*follow, "--columns", "id").returncode == 0


def test_new_rows_under_a_known_origin_are_added_as_the_warning_says(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("v\n1\n2\n")
    write = ["write", "n", "again", "a.csv", "--origin"]
    assert run(*write, "station", "--first-sequence", "1").returncode == 0
    warned = run(*write, "station", "--first-sequence", "1").stderr
    assert b"use another --origin, or a higher --first-sequence" in warned
    assert b"acknowledged 2 rows" in run(*write, "other", "--first-sequence", "1").stdout
    assert b"acknowledged 2 rows" in run(*write, "station", "--first-sequence", "3").stdout
    assert len(run("query", "n", "again", "--format", "jsonl").stdout.splitlines()) == 6


@pytest.mark.parametrize(
    ("arguments", "advice", "helped"),
    [
        (["--flight", "{used}"], "choose another address with --flight", ["--flight", "{free}"]),
        (["--http", "{used}"], "choose another address with --http", ["--http", "{free}"]),
        (["--http", "0.0.0.0:0"], "use --insecure", ["--http", "0.0.0.0:0", "--insecure"]),
        (["--http", "0.0.0.0:0"], "listen on 127.0.0.1", ["--http", "127.0.0.1:0"]),
        (["--data-dir", "{file}"], "choose another with --data-dir", []),
    ],
)
def test_a_refused_start_succeeds_as_it_says(
    tmp_path: Path, arguments: list[str], advice: str, helped: list[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        used = f"127.0.0.1:{port}"
        places = {"used": used, "free": "127.0.0.1:0", "file": tmp_path / "file"}

        def start(words: list[str]) -> Daemon:
            return Daemon.start(
                tmp_path / "data", arguments=[word.format(**places) for word in words]
            )

        with pytest.raises(DaemonEnded) as error:
            start(arguments).kill()
        assert advice in error.value.stderr
        with start(helped) as daemon, Client(daemon.flight) as client:
            client.write("n", "t", {"v": [1]})


def test_a_client_of_a_secured_daemon_does_as_each_refusal_says(tmp_path: Path) -> None:
    grants = {"none": "other:read", "reader": "n:read,write"}
    secured = Secured(tmp_path, grants)
    token = {name: tmp_path / name for name in grants}
    for name, file in token.items():
        file.write_text(secured.tokens[name])
    settings: dict[str, Any] = secured.settings
    with Daemon.start(tmp_path / "d", **settings) as daemon:
        (tmp_path / "a.csv").write_text("v\n1\n")
        plain, tls = daemon.flight.replace("+tls", ""), ["--tls-ca", str(secured.ca)]

        def write(*words: object, to: str = daemon.flight) -> tuple[int, str]:
            done = run_command(
                *("write", "n", "t", "a.csv", "--retry-for", "0s"),
                *words,
                cwd=tmp_path,
                endpoint=to,
            )
            return done.returncode, done.stderr.decode()

        for refused, advice in (
            (write(to=plain), "then use grpc+tls:// and tls_ca (--tls-ca)"),
            (write(), "pass the certificates of its authority as tls_ca (--tls-ca)"),
            (write(*tls), "pass a token with token_file (--token-file)"),
            (write(*tls, "--token-file", token["none"]), "'ingester tokens add --grant'"),
        ):
            assert refused[0] != 0
            assert advice in refused[1]
        assert write(*tls, "--token-file", token["reader"]) == (0, "")


def test_a_plain_flight_client_is_let_in_with_the_header_that_the_refusal_names(
    tmp_path: Path,
) -> None:
    secured = Secured(tmp_path, {"reader": "n:read"})
    settings: dict[str, Any] = secured.settings
    with (
        Daemon.start(tmp_path / "d", **settings) as daemon,
        fl.connect(daemon.flight, tls_root_certs=secured.ca.read_bytes()) as client,
    ):
        with pytest.raises(fl.FlightUnauthenticatedError, match="send 'authorization: Bearer"):
            list(client.list_flights())
        bearer = f"Bearer {secured.tokens['reader']}".encode()
        options = fl.FlightCallOptions(headers=[(b"authorization", bearer)])
        assert list(client.list_flights(options=options)) == []


def test_a_command_for_one_daemon_works_when_one_is_named(run: Run, served: Daemon) -> None:
    several = run("drain", "--endpoint", f"{served.flight},127.0.0.1:1")
    assert (several.returncode, b"name one with --endpoint" in several.stderr) == (2, True)
    one = run("drain", "--undo", "--endpoint", served.flight)
    assert one.returncode == 0, one.stderr


def test_a_status_is_watched_at_the_intervals_that_the_refusal_names(
    run: Run, served: Daemon
) -> None:
    refused = run("status", "--watch", "0.01")
    assert refused.returncode == 2
    words = refused.stderr.decode().split()
    least = words[words.index("give") + 1]
    command = ["ingester", "status", "--watch", least, "--json", "--endpoint", served.flight]
    with subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())
        assert json.loads(watching.stdout.readline())
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 0


def test_a_binary_format_goes_to_a_file_instead_of_a_terminal(
    run: Run, served: Daemon, tmp_path: Path
) -> None:
    with Client(served.flight) as client:
        client.write("n", "binary", {"v": [1]})
    query = ["query", "n", "binary", "--format", "arrow"]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ingester", *query, "--endpoint", served.flight]
    refused = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, check=False)
    os.close(theirs)
    os.close(ours)
    assert refused.returncode == 2
    assert b"use --output or redirect standard output" in refused.stderr
    redirected = run(*query).stdout
    assert pa.ipc.open_stream(redirected).read_all().to_pylist() == [{"v": 1}]
    assert run(*query, "--output", "out.arrow").returncode == 0
    assert pa.ipc.open_file((tmp_path / "out.arrow").read_bytes()).read_all().num_rows == 1


def test_a_checkpoint_too_many_is_kept_when_one_is_deleted(tmp_path: Path) -> None:
    daemon = Daemon.start(tmp_path / "d", limits__checkpoints="1")
    with daemon, Client(daemon.flight) as client:
        client.write("n", "t", {"v": [1]})
        client.put_checkpoint("n", "t", "one", b"1")
        with pytest.raises(ClientError, match=r"delete those that nobody needs"):
            client.put_checkpoint("n", "t", "two", b"2")
        command = ("checkpoints", "n", "t", "--delete", "one")
        done = run_command(*command, cwd=tmp_path, endpoint=daemon.flight)
        assert done.returncode == 0, done.stderr
        client.put_checkpoint("n", "t", "two", b"2")


def test_metrics_beyond_the_loopback_are_served_as_the_refusal_says(
    run: Run, served: Daemon
) -> None:
    with Client(served.flight) as client:
        client.write("n", "measured", {"v": [1]})
    follow = ["follow", "n", "measured", "--into", "parquet:p", "--once", "--http"]
    refused = run(*follow, "0.0.0.0:0")
    assert (refused.returncode, b"or pass --insecure" in refused.stderr) == (2, True)
    assert run(*follow, "127.0.0.1:0").returncode == 0
    assert run(*follow, "0.0.0.0:0", "--insecure").returncode == 0
