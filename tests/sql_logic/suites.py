"""Runs files of SQLLogicTest: each query at a daemon, over tables that were loaded by its client.

An answer must equal that of DuckDB over a copy of the same rows, and the file's expectation where
DuckDB fulfils it. A query whose answer depends on the order of rows is counted and not compared.
Statements that change tables run in a local DuckDB only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic

import duckdb
import pyarrow as pa

from ingester.client import Client
from tests.sql_logic.answers import as_expected, differences
from tests.sql_logic.engines import FAILED, Engine, LocalEngine
from tests.sql_logic.mirror import Mirror
from tests.sql_logic.script import Record, Unsupported, parse

FILES = (".test", ".slt", ".test_slow")
_READS = {"SELECT", "EXPLAIN"}
# What differs between any two databases or calls.
_OF_ITS_OWN = re.compile(
    r"duckdb_|\browid\b|pg_|information_schema|sqlite_master|current_(schema|database|catalog|timestamp|time"
    r"|date|setting|query|role|user|localtime)|\bmain\.|\brandom|uuid|\bnow\(|today|txid|version\(|"
    r"pragma|explain|getvariable|query_table|\bquery\(|\bshow\b|describe|summarize|nextval|currval|stats\(|sample|"
    r"read_(csv|parquet|json|text|blob)|glob\(|sniff|_csv|parquet_|'[^']*\.(csv|parquet|json)",
    re.IGNORECASE,
)
_FORBIDDEN = re.compile(
    r"digits|disabled|not allowed|only one|is not a query|read-only|Only SELECT", re.I
)
_WORD = re.compile(r"\w+")
_MAX_S_PER_FILE = 60.0


@dataclass
class Report:
    """What was run, and the faults."""

    counts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def find_files(folders: Iterable[Path]) -> list[Path]:
    """Return the files of SQLLogicTest in folders, also nested, in order."""
    found: list[Path] = []
    for folder in folders:
        inside = [folder] if folder.is_file() else sorted(folder.rglob("*"))
        found += [path for path in inside if path.suffix in FILES]
    return found


def run_files(
    files: Iterable[Path],
    client: Client,
    engine: Callable[[str], Engine],
    *,
    seed: int = 0,
    until: float = float("inf"),
    say: Callable[[str], None] = print,
) -> Report:
    """Run files until the time on the monotonic clock, and return the report.

    Args:
        client: Loads the tables.
        engine: Returns what runs queries in a namespace.
    """
    report = Report()
    for number, path in enumerate(files):
        if monotonic() > until:
            report.counts["files not reached"] += 1
            continue
        before = len(report.faults)
        run = _Run(path, client, engine, f"s{seed}_{number}", seed, report)
        try:
            run.all()
        except Unsupported as exc:
            report.skipped[f"files: {exc}"] += 1
        finally:
            run.close()
        for fault in report.faults[before:]:
            say(fault)
    return report


class _Run:
    """One file."""

    def __init__(
        self,
        path: Path,
        client: Client,
        engine: Callable[[str], Engine],
        namespace: str,
        seed: int,
        report: Report,
    ) -> None:
        self._path = path
        self._engine = engine
        self._report = report
        self._source = LocalEngine()
        self._mirror = Mirror(client, namespace, Random(f"{seed}/{path.name}"))
        self._stale = True

    def close(self) -> None:
        self._source.close()
        self._mirror.close()

    def all(self) -> None:
        text = self._path.read_text(errors="replace")
        records = list(parse(text))
        self._report.counts["files"] += 1
        end = monotonic() + _MAX_S_PER_FILE
        for record in records:
            if monotonic() > end:
                self._skip("the file took too long")
                continue
            self._record(record)

    def _skip(self, why: str) -> None:
        self._report.skipped[why] += 1

    def _record(self, record: Record) -> None:
        try:
            kind = self._source.kind_of(record.sql)
        except duckdb.Error:
            kind = "SELECT" if record.sql[:6].upper() == "SELECT" else "INVALID"
        if kind not in _READS:
            self._skip(f"statements: {kind}")
            self._stale |= kind not in ("SET", "PRAGMA")
            try:
                self._source.do(record.sql)
            except (duckdb.Error, RuntimeError, UnicodeError):
                self._skip("statements that failed locally")
            return
        if _OF_ITS_OWN.search(record.sql):
            self._skip("queries about the system, files or chance")
            return
        self._query(record)

    def _query(self, record: Record) -> None:
        if self._stale:
            try:
                self._mirror.refresh(self._source)
            except duckdb.Error:  # such as a view of a file that does not exist
                self._skip("queries while the local tables cannot be listed")
                return
            self._stale = False
        words = {word.lower() for word in _WORD.findall(record.sql)}
        for name, why in self._mirror.unavailable.items():
            if name.lower() in words:
                self._skip(f"queries of tables: {why}"[:80])
                return
        tables = words & {name.lower() for name in self._mirror.tables}
        self._report.counts["queries of tables"] += bool(tables)
        self._compare(record)

    def _compare(self, record: Record) -> None:
        daemon = self._engine(self._mirror.name)
        copy = self._mirror.copy
        wanted, error = _outcome(copy.run, record.sql)
        found, refusal = _outcome(daemon.run, record.sql)
        counts = self._report.counts
        if wanted is None or found is None:
            if (wanted is None) == (found is None):
                counts["queries that fail on both sides"] += 1
            elif found is None and _FORBIDDEN.search(refusal):
                self._skip("queries refused by design")
            elif not self._by_chance(record):
                self._fault(record, f"daemon: {refusal or 'answers'}; DuckDB: {error or 'answers'}")
            return
        difference = differences(found, wanted)
        if difference and self._by_chance(record):
            self._skip("queries whose answer depends on the order of rows")
            return
        if difference and not differences(found, wanted, rounded=True):
            counts["queries that differ in the last digits of floats"] += 1
        elif difference:
            self._fault(record, difference)
            return
        counts["queries"] += 1
        if record.expected is not None and as_expected(record, wanted):
            counts["answers as in the file"] += 1
            another = "order by" in record.sql.lower() and not as_expected(record, found)
            if another and not self._by_chance(record, ordered=True):
                self._fault(record, "another order than in the file")

    def _by_chance(self, record: Record, *, ordered: bool = False) -> bool:
        """Return whether DuckDB's own answer depends on the order of rows, or on luck."""
        first, why = _outcome(self._mirror.copy.run, record.sql)
        for seed in range(4):
            other, why_not = _outcome(self._mirror.shuffled(seed).run, record.sql)
            if (first is None) != (other is None):
                return True
            if first is None or other is None:
                if why != why_not:
                    return True
            elif differences(first, other, ordered=ordered):
                return True
        return False

    def _fault(self, record: Record, what: str) -> None:
        states = dict(self._mirror.states)
        self._report.faults.append(
            f"{self._path}:{record.line}: {what}\n  {record.sql}\n  {states}"
        )


def _outcome(run: Callable[[str], pa.Table], sql: str) -> tuple[pa.Table | None, str]:
    try:
        return run(sql), ""
    except FAILED as exc:
        return None, str(exc)[:300] or type(exc).__name__
