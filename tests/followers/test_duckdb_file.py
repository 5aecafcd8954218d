"""A follower and readers share a DuckDB file; unsuitable files are refused."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from ingester.client.errors import InvalidRequest, Unavailable
from ingester.followers import FollowerError, open_copy
from ingester.followers.duckdb_file import DuckDBFile
from tests.crash.worlds import mount, no_small_disk

HOLD = """
import duckdb, sys
with duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "read") as connection:
    print(connection.execute("SELECT count(*) FROM t").fetchall()[0][0], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "it's a copy.duckdb"


def made(path: Path) -> DuckDBFile:
    file = DuckDBFile(path)
    with file.transaction() as connection:
        connection.execute("CREATE TABLE t (i INT)")
    return file


def run(file: DuckDBFile, *statements: str) -> None:
    with file.transaction() as connection:
        for statement in statements:
            connection.execute(statement)


@contextlib.contextmanager
def held(path: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """Run another process that has the file open."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline().strip().isdigit()
        yield process
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


@pytest.mark.parametrize("how", ["read", "write"])
def test_a_file_that_somebody_has_open_is_waited_for_and_told_once(path: Path, how: str) -> None:
    told, waits = [], threading.Event()

    def tell(holder: str) -> None:
        told.append(holder)
        waits.set()

    made(path).close()
    file = DuckDBFile(path, tell)
    with held(path, how) as process:

        def let_go() -> None:
            waits.wait()
            assert process.stdin is not None
            process.stdin.close()

        thread = threading.Thread(target=let_go)
        thread.start()
        with file.transaction() as connection:
            connection.execute("INSERT INTO t VALUES (1)")
        thread.join()
    assert len(told) == 1
    assert f"(PID {process.pid})" in told[0]
    assert file.waited_s > 0
    file.close()


def test_readers_open_the_file_between_transactions(path: Path) -> None:
    file = made(path)
    for number in range(3):
        with file.transaction() as connection:
            connection.execute("INSERT INTO t VALUES (?)", [number])
        # No file lies next to it: a copy of this file is complete.
        assert [other.name for other in path.parent.iterdir()] == [path.name]
        with held(path, "read"), held(path, "read"):
            pass
    file.close()


def test_a_new_file_is_one_that_every_duckdb_since_1_0_reads(path: Path) -> None:
    file = DuckDBFile(path)
    with file.transaction() as connection:
        connection.execute("CREATE TABLE t (n TIMESTAMP_NS, m MAP(VARCHAR, INTEGER[]))")
        connection.execute(
            "INSERT INTO t VALUES (TIMESTAMP_NS '2026-11-26 12:00:00', MAP{'a': [1]})"
        )
    file.close()
    # The storage version follows a checksum and the magic; DuckDB 1.0 has 64.
    assert path.read_bytes()[8:20] == b"DUCK" + (64).to_bytes(8, "little")


def test_closing_ends_the_wait_for_a_reader(path: Path) -> None:
    waits = threading.Event()
    made(path).close()
    file = DuckDBFile(path, lambda holder: waits.set())
    outcome: list[BaseException] = []

    def write() -> None:
        try:
            with file.transaction():
                pass
        except Unavailable as exc:
            outcome.append(exc)

    with held(path, "read"):
        thread = threading.Thread(target=write)
        thread.start()
        assert waits.wait(30)
        file.close()
        thread.join()
    assert "closed during the wait" in str(outcome[0])
    with pytest.raises(Unavailable, match="closed"), file.transaction():
        pass


def test_what_raises_leaves_nothing_and_the_file_usable(path: Path) -> None:
    file = made(path)
    with pytest.raises(InvalidRequest, match=r"copy\.duckdb: .*syntax error"):
        run(file, "INSERT INTO t VALUES (1)", "nonsense")
    with contextlib.suppress(KeyboardInterrupt), file.transaction() as connection:
        connection.execute("INSERT INTO t VALUES (2)")
        raise KeyboardInterrupt
    with file.transaction() as connection:
        assert connection.execute("FROM t").fetchall() == []
    file.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"host,v\nh1,1\n", "is not a DuckDB file"),
        (b"", "is not a DuckDB file"),
        (b"SQLite format 3\0" + bytes(4096), "is not a DuckDB file"),
        (b"PAR1" + bytes(100), "is not a DuckDB file"),
    ],
    ids=["text", "empty", "sqlite", "parquet"],
)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(
    path: Path, content: bytes, message: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=message):
        run(DuckDBFile(path))
    assert path.read_bytes() == content
    assert [other.name for other in path.parent.iterdir()] == [path.name]


def test_a_broken_file_is_refused(path: Path) -> None:
    made(path).close()
    broken = bytearray(path.read_bytes())
    broken[12] ^= 0xFF
    path.write_bytes(broken)
    with pytest.raises(InvalidRequest, match=r"copy\.duckdb is damaged: .*move it away"):
        run(DuckDBFile(path))


def test_a_folder_and_a_file_in_no_folder_are_refused(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "directory"), (tmp_path / "no" / "f", "No such file")):
        with pytest.raises(InvalidRequest, match=message):
            run(DuckDBFile(path))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if why := no_small_disk(tmp_path):
        pytest.skip(why)
    folder = tmp_path / "small"
    folder.mkdir()
    assert mount(folder)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_read_only_file_system_is_refused(small_disk: Path) -> None:
    made(small_disk / "f.duckdb").close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for name in ("f.duckdb", "new.duckdb"):
        with pytest.raises(InvalidRequest, match="Read-only file system"):
            run(DuckDBFile(small_disk / name))


def test_a_full_disk_keeps_what_was_committed_and_is_gone_on_from(small_disk: Path) -> None:
    file = made(small_disk / "f.duckdb")
    run(file, "CREATE TABLE random (h UBIGINT)")
    kept, at_once = 0, 1_000_000
    with pytest.raises(Unavailable, match="the disk is full") as refused:  # noqa: PT012
        while True:
            run(
                file, f"INSERT INTO random SELECT hash(i) FROM range({kept}, {kept + at_once}) r(i)"
            )
            kept += at_once
    assert refused.value.code == "disk_full"
    with duckdb.connect(str(file.path), read_only=True) as reader:
        found = reader.execute("SELECT count(*) FROM random").fetchall()[0][0]
    assert found in (kept, kept + at_once)
    assert kept > 0
    subprocess.run(["mount", "-o", "remount,size=1g", str(small_disk)], check=True)
    run(file, "INSERT INTO random VALUES (1)")
    with file.transaction() as connection:
        assert connection.execute("SELECT count(*) FROM random").fetchall() == [(found + 1,)]
    file.close()


def test_a_new_file_is_there_whole_or_not_at_all_for_readers_and_after_a_kill(path: Path) -> None:
    made(path).close()
    whole = path.read_bytes()
    new = path.with_name(f"{path.name}.new")
    sizes: set[int] = set()

    def look(done: threading.Event) -> None:
        while not done.is_set():
            with contextlib.suppress(FileNotFoundError):
                sizes.add(path.stat().st_size)

    for length in (0, 4096, 12288):
        path.unlink()
        new.write_bytes(whole[:length])  # as a process leaves it that is killed during the write
        done = threading.Event()
        looker = threading.Thread(target=look, args=(done,))
        looker.start()
        made(path).close()
        done.set()
        looker.join()
        assert [other.name for other in path.parent.iterdir()] == [path.name]
        with open_copy(path) as reader:
            assert reader.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
    assert sizes
    assert min(sizes) >= 12288, "the three headers"


def test_a_file_that_was_deleted_is_not_created_again(path: Path) -> None:
    file = made(path)
    run(file, "INSERT INTO t VALUES (1)")
    path.unlink()
    for _ in range(2):
        with pytest.raises(FollowerError, match=r"was deleted or moved away .* start the follower"):
            run(file, "INSERT INTO t VALUES (2)")
    file.close()
    assert list(path.parent.iterdir()) == []
    # A restart begins with a new file.
    made(path).close()
    assert path.exists()
