"""The example source for CSV folders in deploy/examples, under every kind of file change."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ingester.client import Client, RetryPolicy
from tests.drivers.daemon import Daemon
from tests.drivers.ports import steady_flight

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
sys.path.insert(0, str(EXAMPLES))
try:
    import csv_folder  # type: ignore[import-not-found]
finally:
    sys.path.remove(str(EXAMPLES))

TABLE = ("shop", "orders")
SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])
Look = Callable[[], tuple[int, str]]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    store = f"file://{tmp_path}/store"
    with Daemon.start(tmp_path / "data", arguments=steady_flight(), store=store) as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.flight, retry=RetryPolicy(for_s=30, first_delay_s=0.01)) as connected:
        connected.create_table(*TABLE, SCHEMA, partition_by=["bucket(4, id)"])
        yield connected


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    return made


@pytest.fixture
def look(client: Client, folder: Path) -> Look:
    """Run the source once as a new process would; return its exit code and output."""

    def once() -> tuple[int, str]:
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            code = csv_folder.follow(client, folder, TABLE, None)
        return code, said.getvalue()

    return once


def rows(client: Client) -> list[tuple[int, str | None]]:
    found = client.query(*TABLE).to_pylist()
    return sorted((row["id"], row["note"]) for row in found)


def append(path: Path, text: str) -> None:
    with path.open("a", newline="") as file:
        file.write(text)


def test_a_growing_file_is_read_from_its_saved_position(
    client: Client, folder: Path, look: Look
) -> None:
    orders = folder / "a.csv"
    append(orders, "id,note\n1,x\n2,")
    assert look() == (0, "")
    assert rows(client) == [(1, "x")]  # an incomplete line waits
    append(orders, 'y\n\n3,"two\nlines, ')
    assert look() == (0, "")
    assert rows(client) == [(1, "x"), (2, "y")]
    append(orders, '""quoted"""\r\n4,é\n')
    assert look() == (0, "")
    assert look() == (0, "")
    expected = [(1, "x"), (2, "y"), (3, 'two\nlines, "quoted"'), (4, "é")]
    assert rows(client) == expected
    stored = client.checkpoint(*TABLE, "a.csv")
    assert stored.state is not None
    at = csv_folder.Position.of(stored.state)
    assert (at.offset, at.row) == (orders.stat().st_size, 4)
    assert stored.shared == b"id,note\n"


def test_a_file_without_a_whole_header_waits(client: Client, folder: Path, look: Look) -> None:
    append(folder / "a.csv", "id,no")
    assert look() == (0, "")
    append(folder / "a.csv", "te\n")
    assert look() == (0, "")
    append(folder / "a.csv", "1,x\n")
    assert look() == (0, "")
    assert rows(client) == [(1, "x")]


def test_a_repeated_header_and_a_byte_order_mark_are_no_rows(
    client: Client, folder: Path, look: Look
) -> None:
    append(folder / "a.csv", "\ufeffid,note\n1,x\nid,note\n2,y\n")
    assert look() == (0, "")
    assert rows(client) == [(1, "x"), (2, "y")]


@pytest.mark.parametrize(
    "changed",
    ["id,note\n", "", "id,note\n5,v\n6,w\n7,another beginning\n", "note,id\n1,x\n2,y\n3,z\n"],
    ids=["truncated", "emptied", "replaced", "another header"],
)
def test_a_changed_file_is_set_aside_and_the_others_continue(
    client: Client, folder: Path, look: Look, changed: str
) -> None:
    append(folder / "a.csv", "id,note\n1,x\n2,y\n")
    assert look() == (0, "")
    (folder / "a.csv").write_text(changed)
    append(folder / "b.csv", "id,note\n10,b\n")
    code, said = look()
    assert code == 1
    assert "a.csv: its first 16 bytes, which were read, have changed" in said
    assert "under another name" in said
    assert rows(client) == [(1, "x"), (2, "y"), (10, "b")]
    (folder / "a.csv").rename(folder / "c.csv")
    assert look()[0] in (0, 1)
    (folder / "a.csv").write_text("id,note\n1,x\n2,y\n3,z\n")
    code, said = look()
    assert "a.csv" not in said
    assert (3, "z") in rows(client)


def test_a_renamed_file_is_not_read_twice(client: Client, folder: Path, look: Look) -> None:
    append(folder / "a.csv", "id,note\n1,x\n2,y\n")
    assert look() == (0, "")
    append(folder / "a.csv", "3,z\n")
    (folder / "a.csv").rename(folder / "a-1.csv")
    code, said = look()
    assert code == 1
    assert "a-1.csv: it begins like a.csv, which was read and no longer exists" in said
    assert rows(client) == [(1, "x"), (2, "y")]
    # As after a log rotation: another file has the name now.
    append(folder / "a.csv", "id,note\n7,new\n8,and longer than what was read\n")
    code, said = look()
    assert "a-1.csv: it begins like a.csv" in said
    assert "a.csv: its first 16 bytes, which were read, have changed" in said
    assert rows(client) == [(1, "x"), (2, "y")]
    (folder / "a-1.csv").rename(folder / "a.csv")
    assert look() == (0, "")
    assert rows(client) == [(1, "x"), (2, "y"), (3, "z")]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("3\n", "the record that ends at byte 18 has 1 fields, and the header 2"),
        ("x,y\n", "column 'id' of the records before byte 20: Failed to parse string: 'x'"),
        ('3,"a"b\n', "the record at byte 16 is not CSV: ',' expected after '\"'"),
        ("3,a\rb\n", "the record at byte 16 is not CSV: "),
    ],
)
def test_an_invalid_line_is_reported_until_it_is_fixed(
    client: Client, folder: Path, look: Look, line: str, says: str
) -> None:
    append(folder / "a.csv", "id,note\n1,x\n2,y\n")
    assert look() == (0, "")
    append(folder / "a.csv", line)
    for _ in range(2):
        code, said = look()
        assert code == 1
        assert says in said
    (folder / "a.csv").write_text("id,note\n1,x\n2,y\n3,z\n")
    assert look() == (0, "")
    assert rows(client) == [(1, "x"), (2, "y"), (3, "z")]


def test_invalid_utf_8_and_an_endless_record_are_reported(
    client: Client, folder: Path, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.csv").write_bytes(b"id,note\n1,\xe9\n")
    append(folder / "b.csv", 'id,note\n1,"' + "open\n" * 400)
    append(folder / "c.csv", "x" * 2000)
    monkeypatch.setattr(csv_folder, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(csv_folder, "LONGEST_RECORD", 900)
    code, said = look()
    assert code == 1
    assert "a.csv: the record at byte 8 is not UTF-8" in said
    assert "b.csv: the record at byte 8 has no end within 900 bytes: is a quote not closed?" in said
    assert "c.csv: its header has no end within 1,000 bytes" in said


def test_records_longer_than_a_chunk_and_chunks_of_blank_lines_are_read(
    client: Client, folder: Path, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_folder, "CHUNK_BYTES", 100)
    long = "x" * 5000
    append(folder / "a.csv", f"id,note\n1,{long}\n" + "\n" * 500 + "2,y\n")
    assert look() == (0, "")
    assert look() == (0, "")
    assert rows(client) == [(1, long), (2, "y")]


def test_files_of_the_same_name_on_two_machines_are_distinct(
    client: Client, folder: Path, look: Look, tmp_path: Path
) -> None:
    append(folder / "a.csv", "id,note\n1,x\n2,y\n")
    other = tmp_path / "other"
    other.mkdir()
    append(other / "a.csv", "id,note\n8,v\n9,w\n")
    both = [csv_folder.GrowingFile(client, TABLE, each / "a.csv", {}) for each in (folder, other)]
    for each in both:
        each.at = each.begin()  # both believe that no process has begun
    assert both[0].step()
    assert both[1].step()  # its first row was a duplicate: it asks for the state
    with pytest.raises(csv_folder.CannotRead, match="have changed"):
        both[1].step()
    both[0].leave()
    both[1].leave()
    assert look() == (0, "")
    assert rows(client) == [(1, "x"), (2, "y")]


@pytest.mark.parametrize("durable", [0, 3], ids=["nothing is in object storage", "a part is"])
def test_no_row_is_lost_with_a_disk_lost_after_the_state_was_read(
    client: Client, daemon: Daemon, folder: Path, look: Look, durable: int
) -> None:
    def send(rows: range) -> None:
        append(folder / "a.csv", "".join(f"{row},x\n" for row in rows))
        assert look() == (0, "")

    append(folder / "a.csv", "id,note\n")
    if durable:
        send(range(durable))
        client.persist(*TABLE)
    send(range(durable, 8))  # by a process that has ended
    source = csv_folder.GrowingFile(client, TABLE, folder / "a.csv", {})
    source.at = source.begin()
    daemon.kill()
    shutil.rmtree(daemon.data_dir)
    with daemon.again(recovery__accept_lost_log="true"):
        append(folder / "a.csv", "8,x\n")
        while source.step():
            pass
        source.writer.flush()
        assert rows(client) == [(row, "x") for row in range(9)]
        source.leave()


def test_rows_only_in_the_log_are_resent_and_deduplicated(
    client: Client, folder: Path, look: Look
) -> None:
    append(folder / "a.csv", "id,note\n1,x\n2,y\n")
    assert look() == (0, "")
    client.persist(*TABLE)
    append(folder / "a.csv", "3,z\n4,v\n")
    assert look() == (0, "")
    before = client.checkpoint(*TABLE, "a.csv")
    assert not before.durable
    assert look() == (0, "")
    assert client.checkpoint(*TABLE, "a.csv") == before
    append(folder / "a.csv", "5,w\n")
    assert look() == (0, "")
    assert rows(client) == [(1, "x"), (2, "y"), (3, "z"), (4, "v"), (5, "w")]


def test_files_with_the_same_beginning_are_distinct(
    client: Client, folder: Path, look: Look
) -> None:
    for name in ("a.csv", "b.csv"):
        append(folder / name, "id,note\n1,x\n")
    assert look() == (0, "")
    append(folder / "c.csv", "id,note\n1,x\n2,y\n")
    append(folder / "b.csv", "3,z\n")
    assert look() == (0, "")
    assert rows(client) == [(1, "x"), (1, "x"), (1, "x"), (2, "y"), (3, "z")]


def test_a_temporarily_missing_file_is_resumed(client: Client, folder: Path, look: Look) -> None:
    append(folder / "a.csv", "id,note\n1,x\n")
    assert look() == (0, "")
    (folder / "a.csv").rename(folder / "a.away")
    assert look() == (0, "")
    append(folder / "a.away", "2,y\n")
    (folder / "a.away").rename(folder / "a.csv")
    assert look() == (0, "")
    assert rows(client) == [(1, "x"), (2, "y")]


def test_a_state_of_another_program_is_reported(client: Client, folder: Path, look: Look) -> None:
    client.put_checkpoint(*TABLE, "a.csv", b"offset 17")
    append(folder / "a.csv", "id,note\n1,x\n")
    append(folder / "b.csv", "id,note\n2,y\n")
    code, said = look()
    assert code == 1
    assert "a.csv: its checkpoint was not written by this program: b'offset 17'" in said
    assert rows(client) == [(2, "y")]
    client.delete_checkpoint(*TABLE, "a.csv")
    assert look() == (0, "")
    assert rows(client) == [(1, "x"), (2, "y")]
