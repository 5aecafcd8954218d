"""``ingester compact`` merges small files without a daemon: reports, exit codes, kills, memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq

from persist.manifest import Manifest, Proposal, WriterIdentity, commit, verify
from persist.parquet.encode import encode_sorted
from persist.parquet.put import FileOrigin, put_file
from persist.partitioning import PartitionSpec
from persist.store import open_store
from persist.table import TableDefinition
from tests.cli.conftest import Run, run_command
from tests.drivers.column_numbers import check_numbers
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import events, persist, put, query

SCHEMA = pa.schema({"n": pa.int64(), "host": pa.string(), "text": pa.string()})
COMMAND = [sys.executable, "-m", "ingester", "compact"]
ME = WriterIdentity(ingester_id="me", incarnation="x", epoch=1)


def made(
    folder: Path, files: int, rows: int, text: str = "", spec: tuple[str, ...] = ()
) -> Manifest:
    """A table of this many small files, with rows numbered from 0."""
    manifest = Manifest(open_store(f"file://{folder}"), "n", "t", 1)
    definition = TableDefinition(SCHEMA, PartitionSpec.parse(spec))
    state = commit(manifest, None, Proposal(definition.actions()), ME)
    for number in range(files):
        numbers = np.arange(number * rows, (number + 1) * rows)
        values = [numbers, [f"h{number % 3}"] * rows, pa.repeat(text, rows)]
        table = pa.table(values, schema=SCHEMA)
        partition = definition.spec_id, (f"h{number % 3}",) if spec else ()
        origin = FileOrigin("persist", "me", definition, partition)
        encoded = encode_sorted(table, definition, metadata={}, target_bytes=1 << 30)
        adds = [put_file(manifest.store, manifest.root, file, origin) for file in encoded]
        state = commit(manifest, state, Proposal(adds), ME)
    return manifest


def has_each_row_once(manifest: Manifest, folder: Path, rows: int) -> bool:
    files = manifest.load().files
    numbers = [pq.read_table(folder / "n/t/v1" / path)["n"].to_numpy() for path in files]
    return np.array_equal(np.sort(np.concatenate(numbers)), np.arange(rows))


def test_small_files_of_all_tables_are_merged_while_the_daemon_runs(
    served: Daemon, run: Run, namespace: str
) -> None:
    with fl.connect(served.flight) as client:
        for table in ("a", "b"):
            for number in range(3 if table == "a" else 1):
                put(client, (namespace, table), events(100 * number, 100, days=2))
                persist(client, (namespace, table))
        url = f"file://{served.data_dir / 'store'}"
        done = run("compact", url, namespace, "--json")
        first, second = map(json.loads, done.stdout.splitlines())
        assert (first["table"], first["files_before"], first["files_after"]) == ("a", 6, 2)
        assert (first["rows"], first["commits"], first["left"]) == (300, 1, 0)
        assert (second["table"], second["files_before"]) == ("b", 0)
        assert f"{namespace}/a: 2 of 2 groups" in done.stderr.decode()
        assert done.returncode == 0
        again = run("compact", url, namespace, "a")
        assert f"{namespace}/a: nothing to do at version" in again.stdout.decode()
        rows = query(client, (namespace, "a"), columns=["i"])["i"].to_pylist()
        assert sorted(rows) == list(range(300))


def test_wrong_arguments_are_told(tmp_path: Path) -> None:
    made(tmp_path, 2, 5)

    def told(code: int, *arguments: object) -> str:
        done = run_command("compact", tmp_path, *arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (code, b"")
        return done.stderr.decode()

    assert "--target-file-bytes '0': it must be at least 1" in told(2, "--target-file-bytes", "0")
    assert "--filter: " in told(2, "--filter", "n = ")
    assert "n/t: filter: unknown column 'nothing'" in told(1, "--filter", "nothing = 1")
    assert "is not NAME=VALUE" in told(2, "--store-option", "endpoint_url")
    assert "environment variable 'NONE' is not set" in told(2, "--store-option", "k=env:NONE")
    assert "table n/absent does not exist" in told(1, "n", "absent")
    assert "no table found in" in told(1, "m")


def test_only_files_that_may_match_are_merged(tmp_path: Path) -> None:
    manifest = made(tmp_path, 6, 10, spec=("identity(host)",))
    done = run_command("compact", tmp_path, "--filter", "host_key = 'h1'", cwd=tmp_path)
    assert b"2 files" in done.stdout and b"became 1" in done.stdout
    assert manifest.load().file_count == 5
    assert check_numbers(manifest) == (5, 0)


def test_a_want_of_memory_is_told_with_what_helps(tmp_path: Path) -> None:
    manifest = made(tmp_path, 3, 100_000, "x" * 100)
    done = run_command("compact", tmp_path, "--memory", "1MiB", cwd=tmp_path)
    assert done.returncode == 1
    assert b"1 groups left; refused: 3 files of the table would exceed 1 MB" in done.stdout
    assert b"give more memory, or choose a smaller size" in done.stdout
    assert manifest.load().file_count == 3


def test_memory_is_bounded_however_large_the_table_is(tmp_path: Path) -> None:
    """A gigabyte of rows under a limit of half a gigabyte for all data of the process."""
    files, rows = 21, 30_000
    manifest = made(tmp_path, files, rows, "x" * 1000)

    def limited(memory: str) -> subprocess.CompletedProcess[str]:
        size = 512 << 20
        command = [*COMMAND, str(tmp_path), "--memory", memory, "--target-file-bytes", "1GiB"]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (size, size)),
        )

    too_much = limited("8GiB")
    assert (too_much.returncode, too_much.stdout) == (1, "")
    assert "out of memory: give a smaller --memory" in too_much.stderr
    assert manifest.load().file_count == files
    fits = limited("300MiB")
    assert "21 files" in fits.stdout and fits.returncode == 0, fits.stderr
    assert has_each_row_once(manifest, tmp_path, files * rows)
    assert manifest.load().file_count == files // 3


def test_a_killed_compaction_leaves_only_garbage(tmp_path: Path) -> None:
    rows = 36 * 20_000
    manifest = made(tmp_path, 36, rows // 36, spec=("identity(host)",))
    before = manifest.load()
    target = 2 * max(add.bytes for add in before.files.values())
    command = [*COMMAND, str(tmp_path), "--target-file-bytes", str(target)]
    ends = []
    for more in (1, 4, 8, 0):
        wanted = _files(tmp_path) + more
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            if more:
                until(partial(_has_files_or_ended, tmp_path, wanted, process), "new files")
            else:
                assert b"groups" in process.stderr.readline()  # just after a commit
            process.kill()
        ends.append(process.returncode)
        assert has_each_row_once(manifest, tmp_path, rows)
    assert -9 in ends
    assert manifest.load().file_count < before.file_count
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert has_each_row_once(manifest, tmp_path, rows)
    assert not verify(manifest).damaged


def _files(folder: Path) -> int:
    return sum(1 for _ in folder.rglob("*.parquet"))


def _has_files_or_ended(folder: Path, count: int, process: subprocess.Popen[bytes]) -> bool:
    return _files(folder) >= count or process.poll() is not None


def test_two_at_once_share_the_work(tmp_path: Path) -> None:
    manifest = made(tmp_path, 30, 2_000, spec=("identity(host)",))
    both = [
        subprocess.Popen([*COMMAND, str(tmp_path), "--json"], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    reports = [json.loads(process.communicate()[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(report["files_before"] for report in reports) == 30
    assert manifest.load().file_count == 3
    assert has_each_row_once(manifest, tmp_path, 60_000)
