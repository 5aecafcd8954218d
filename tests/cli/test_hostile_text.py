"""Names and values with terminal escape sequences: each command shows them, escaped.

The store has a table from before such names were refused; a daemon serves it, a replicator
reports it, and a push was aborted with such a reason. Each command runs on a pipe; interactive
commands also run on a terminal.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import typer

from ingester.cli.app import app
from ingester.client import Client, InvalidRequest
from ingester.reports.replications import ReplicationReport, TableReport
from persist.manifest import (
    CheckpointAction,
    Manifest,
    Proposal,
    WriterAction,
    WriterIdentity,
    commit,
)
from persist.partitioning import PartitionSpec
from persist.store import open_store
from persist.table import TableDefinition
from tests.cli.conftest import ROOT, run_command
from tests.drivers.daemon import Daemon
from tests.drivers.warm import warm
from tests.pushes.test_commands import Place

EVIL = "a\x1b]0;owned\x07\x9b2J\u202eb\u200b\nfake row\r\x7f[/red][bold]x"
SCHEMA = pa.schema([("host", pa.string()), (EVIL, pa.string()), ("l", pa.list_(pa.string()))])
ROW: dict[str, Any] = {"host": EVIL, EVIL: EVIL, "l": [EVIL]}

# Commands that print no foreign names and values, or that other tests cover.
ELSEWHERE = {
    "serve": "its log: tests/observability/test_logs.py",
    "controller": "its log, as that of serve",
    "demo": "its own rows alone",
    "follow": "by `say` and `print_table` alone, as the test of bare prints holds",
    "replicate postgres": "by `say` and `print_line` alone, likewise",
    "replicate verify": "by `print_line` and `print_table` alone, likewise",
}


class World:
    """A daemon with a hostile table, report and files, and a hostile push."""

    def __init__(self, folder: Path, daemon: Daemon) -> None:
        self.folder = folder
        self.daemon = daemon
        self.store = folder / "data" / "store"
        self.push = Place(folder / "push")
        self.push.begin("p1")
        self.copy = folder / "copy"

    def run(self, command: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
        """Run a command on pipes."""
        given = [*command.split(), *map(str, arguments)]
        return run_command(*given, cwd=self.folder, endpoint=self.daemon.flight)

    def shown(self, command: str, *arguments: object) -> str:
        """Run a command on a terminal and return the text shown."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "INGESTER_ENDPOINT": self.daemon.flight,
            # Without colours all escape sequences are from the progress display, or hostile.
            "TERM": "dumb",
        }
        given = [*command.split(), *map(str, arguments)]
        done = warm().on_terminal(given, environment, self.folder)
        assert b"Traceback" not in done.stdout, done.stdout
        return done.stdout.decode()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("hostile")
    store = open_store(str(folder / "data" / "store"))
    definition = TableDefinition(SCHEMA, PartitionSpec.parse(["identity(host)"]))
    manifest = Manifest(store, "n", "old")
    me = WriterIdentity(EVIL, EVIL, 1)
    state = commit(manifest, None, Proposal(definition.actions()), me)
    mine = WriterAction(EVIL, EVIL, 1, "open")
    kept = CheckpointAction(EVIL, "AAAA", ingester_id=EVIL, epoch=1, seq=1, origin=EVIL, sequence=1)
    commit(manifest, state, Proposal([mine, kept]), me)
    with Daemon.start(folder / "data", persist__max_age="1h") as daemon:
        with Client(daemon.flight) as client:
            client.write("n", "old", pa.RecordBatch.from_pylist([ROW], SCHEMA))
            client.persist("n", "old")
            client.write("n", "old", pa.RecordBatch.from_pylist([ROW], SCHEMA))
            table = TableReport(
                table=EVIL, source=EVIL, phase="set_aside", reason=EVIL, helps=(EVIL,)
            )
            report = ReplicationReport(
                namespace="n", tables=(table,), origin="o", source=EVIL, slot=EVIL, reason=EVIL
            )
            client.action("replication_report", msgspec.to_builtins(report))
        shutil.copytree(folder / "data", folder / "copy")
        strays = next((folder / "data" / "store" / "n").rglob("*.parquet")).parent
        (strays / "x\x1b[2J.parquet").write_bytes(b"x")
        (folder / "copy" / "wal" / "x\x1b[2J.wal").write_bytes(b"x")
        yield World(folder, daemon)


def commands(world: World) -> dict[str, list[tuple[object, ...]]]:
    """Return each command's arguments."""
    config = ("--config", world.push.config)
    old = ("n", "old")
    file = ("--file", world.folder / "tokens.json")
    grant = ("--grant", "n:read", *file)
    return {
        "config": [("--store", f"file:///x{EVIL}".replace("\n", ""))],
        "write": [("n", "new", "--json"), ("n", f"t{EVIL}"), ("n", "t", "no\x1b[2Jfile.csv")],
        "create": [("n", f"t{EVIL}", f"{EVIL} int64"), (*old, "host string")],
        "query": [
            old,
            (*old, "--format", "csv"),
            (*old, "--format", "jsonl"),
            (*old, "--columns", EVIL.replace("\n", "")),
            ("n", EVIL),
        ],
        "sql": [
            ("FROM n.old",),
            ("FROM n.old", "--json"),
            ("FROM n.old", "--csv"),
            (f'SELECT "{EVIL}" FROM n.old',),
            (f'SELECT "{EVIL}" FROM n.nothing',),
            ("SELECT 1", "--param", EVIL),
        ],
        "tables": [()],
        "status": [(), ("--json",)],
        "log-level": [("info", "--logger", EVIL), (EVIL,), ("default",)],
        "drain": [("--undo",), ("--timeout", EVIL)],
        "tail": [
            (*old, "--since", "start", "--limit", "2", "--format", "table"),
            (*old, "--filter", EVIL),
            ("n", EVIL),
        ],
        "checkpoints": [(), (*old, "--delete", "b\x1b[2J")],
        "persist": [("n", EVIL)],
        "wal inspect": [(world.copy,)],
        "wal verify": [(world.copy,), (world.copy, "--json")],
        "wal repair": [(world.copy,), (f"{world.copy}\x1b",)],
        "wal adopt": [(world.copy, "--store", f"file://{world.copy}/store")],
        "manifest log": [(world.store,)],
        "manifest show": [(world.store,), (world.store, "--json")],
        "manifest versions": [(world.store, "n", EVIL)],
        "manifest verify": [(world.store,)],
        "manifest gc": [(world.store, "--dry-run")],
        "publish": [
            (world.store, "--format", "delta"),
            ("on", world.store, "n", EVIL),
            ("status", world.store, "--json"),
            (EVIL, EVIL),
        ],
        "compact": [(world.store,), (world.store, "--json"), (world.store, "n", EVIL)],
        "pushes abort": [("p1", *config, "--reason", EVIL)],
        "pushes list": [config, (*config, "--json")],
        "pushes show": [("p1", *config), ("p1", *config, "--json"), (EVIL, *config)],
        "pushes resume": [("p1", *config)],
        "pushes release": [("p1", *config)],
        "pushes rollback": [("p1", *config, "--reason", EVIL)],
        "tokens add": [("fine", *grant), (EVIL, *grant), ("a", "--grant", EVIL, *file)],
        "tokens list": [file, (*file, "--json")],
        "tokens revoke": [(EVIL, *file)],
        "replicate status": [("n",), ("n", "--json"), ("n", "--origin", EVIL)],
    }


def obeyed(text: str) -> list[str]:
    """Return the characters that a terminal would obey or hide, except ends of lines."""
    hides = ("Cc", "Cf", "Cs", "Zl", "Zp")
    orders = {c for c in text if c != "\n" and unicodedata.category(c) in hides}
    return sorted(map(repr, orders)) + ["a row of its own"] * ("\nfake row" in text)


def every_command(group: Any = None, path: str = "") -> Iterator[str]:
    group = typer.main.get_command(app) if group is None else group
    if not hasattr(group, "commands"):
        yield path
        return
    for name, inner in group.commands.items():
        yield from every_command(inner, f"{path} {name}".strip())


def test_every_command_is_covered(world: World) -> None:
    assert set(every_command()) == {*commands(world), *ELSEWHERE}
    assert not set(commands(world)) & set(ELSEWHERE)


def test_every_command_prints_through_the_escaping_functions() -> None:
    bare = []
    for file in sorted((ROOT / "ingester" / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called == "print" or called.endswith(("stdout.write", "stderr.write", "echo")):
                    bare.append((file.name, ast.unparse(node)))
    # Exceptions: a version, the printing code itself, and a line that redraws itself.
    allowed = {"printing.py", "exits.py", "__init__.py", "replicate_verify.py"}
    assert {(name, text) for name, text in bare if name not in allowed} == {
        ("app.py", "print(__version__)")
    }
    assert len(bare) <= 7


SHOWS = {
    "query",
    "sql",
    "tail",
    "status",
    "manifest show",
    "manifest log",
    "replicate status",
    "pushes show",
}


def test_every_command_shows_hostile_text_escaped(world: World) -> None:
    faults = []
    for command, runs in commands(world).items():
        seen = ""
        for arguments in runs:
            done = world.run(command, *arguments)
            exact = not {"csv", "jsonl"}.isdisjoint(arguments) or (
                command == "sql" and not {"--csv", "--json"}.isdisjoint(arguments)
            )
            said = [("stderr", done.stderr)] + ([] if exact else [("stdout", done.stdout)])
            for stream, data in said:
                text = data.decode()
                seen += text
                if obeyed(text) or "Traceback" in text:
                    faults.append((command, arguments[-2:], stream, obeyed(text), text[-400:]))
        if command in SHOWS and "\\x1b" not in seen:
            faults.append((command, (), "shows nothing of it", [], seen[-400:]))
    assert faults == []


def test_csv_and_json_are_escaped_on_a_terminal_and_exact_in_a_pipe(world: World) -> None:
    for kind in ("csv", "jsonl", "table"):
        for asked in (("query", "n", "old"), ("sql", "FROM n.old")):
            text = world.shown(*asked, "--format", kind)
            assert obeyed(text) == [], text
    lines = world.run("query", "n", "old", "--format", "jsonl").stdout
    assert [json.loads(line) for line in lines.splitlines()] == [ROW, ROW]
    shown = world.shown("query", "n", "old", "--format", "jsonl")
    assert [json.loads(line) for line in shown.splitlines()] == [ROW, ROW]
    csv = world.run("query", "n", "old", "--format", "csv").stdout.decode()
    assert csv.count(EVIL) >= 1 + 2 * 2
    for command in ("tables", "status", "manifest show"):
        arguments = (world.store,) if command.startswith("manifest") else ()
        assert obeyed(world.shown(command, *arguments)) == []


def test_a_hostile_column_name_is_kept_if_it_exists_and_refused_if_new(world: World) -> None:
    with Client(world.daemon.flight) as client:
        before = client.query("n", "old", [EVIL])
        assert before.to_pylist() == [{EVIL: EVIL}] * 2
        assert client.query("n", "old", filter=[[(EVIL, "=", EVIL)]]).num_rows == 2
        wider = pa.RecordBatch.from_pylist([{"host": "h", "b\x1b": 1}])
        with pytest.raises(InvalidRequest, match=r"column 'b\\x1b' has control characters"):
            client.write("n", "old", wider)
