"""A folder of growing CSV files as a source: each line of each file is in the table once.

    python deploy/examples/csv_folder.py FOLDER NAMESPACE TABLE [--endpoint …] [--once]

It continues after it or the daemon is killed, and after the daemon's disk is lost.

    one file  =  one source partition  =  one origin, both named after the file
    sequence  =  the number of a batch's last row in its file
    state     =  the byte after that row, the row's number, and hashes that identify the file;
                 equal headers of files are shared

State and rows are committed together. A new process begins at the state in object storage: rows of
a former process that are only in the daemon's log may be lost with its disk, and only this process
would send them again. Rows that still exist are recognised as duplicates.

Batches of a former process may still arrive. So the first row is sent alone: after its answer
nothing of another process is accepted, and the daemon's marks say where to end batches so that
duplicates are recognised.

Files only grow, and an incomplete record at the end waits for the rest. Other changes are reported
and stop the file but not the others: a file that was truncated, replaced or renamed, and a line
that does not fit. Repeated headers are skipped.
"""

import argparse
import contextlib
import csv
import hashlib
import json
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from ingester.client import (
    Ack,
    Checkpoint,
    Client,
    ClientError,
    InvalidRequest,
    NotFound,
    RetryPolicy,
    Writer,
)

CHUNK_BYTES = 1 << 20
LONGEST_RECORD = 16 << 20
BATCH_ROWS = 2000
SAMPLE_BYTES = 4096


class CannotRead(Exception):
    """A file has changed, or has a line that does not fit."""


class Position(NamedTuple):
    """The position in a file. Its JSON is the state of the file's checkpoint."""

    offset: int = 0
    row: int = 0
    head: tuple[int, str] = (0, "")  # a size and a hash: detects a renamed file
    tail: str = ""  # a hash of the bytes before the offset: detects a replaced file

    def state(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def of(cls, state: bytes) -> "Position":
        try:
            found = cls(**json.loads(state))
            return found._replace(head=(int(found.head[0]), found.head[1]))
        except (ValueError, TypeError) as exc:
            raise CannotRead(
                f"its checkpoint was not written by this program: {state[:100]!r}; does another"
                " source use the same names of source partitions in this table?"
            ) from exc


class Record(NamedTuple):
    fields: list[str]
    end: int  # the byte after it


def hashed(sample: bytes) -> str:
    return hashlib.sha256(sample).hexdigest()[:20]


def first_bytes(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


def records(data: bytes, start: int) -> Iterator[Record]:
    """The complete records of ``data``, which begins with a record at byte ``start`` of a file.

    An incomplete last record, possibly with open quotes, is skipped.
    """
    ends, at_end = [start], False

    def lines() -> Iterator[str]:
        nonlocal at_end
        for line in data.split(b"\n")[:-1]:
            ends.append(ends[-1] + len(line) + 1)
            yield line.decode() + "\n"
        at_end = True

    whole = start
    try:
        for fields in csv.reader(lines(), strict=True):
            whole = ends[-1]
            yield Record(fields, whole)
    except UnicodeDecodeError as exc:
        raise CannotRead(f"the record at byte {whole:,} is not UTF-8: {exc}") from exc
    except csv.Error as exc:
        if not at_end:
            raise CannotRead(f"the record at byte {whole:,} is not CSV: {exc}") from exc


class GrowingFile:
    """One file, its position, and its writer if there is one."""

    def __init__(
        self, client: Client, table: tuple[str, str], path: Path, heads: dict[str, tuple[int, str]]
    ) -> None:
        """``heads`` has the size and hash of the beginning of each known file, by name."""
        self.client, self.table, self.path, self.heads = client, table, path, heads
        self.origin = f"csv:{path.name}"
        self.at: Position | None = None
        self.header = b""
        self.known = Position()  # what the daemon had at the start
        self.sent = b""  # the newest state
        self.writer: Writer | None = None
        self.marks: tuple[int, ...] = ()

    def step(self) -> bool:
        """Send at most a chunk of new records. False if there are none."""
        if self.at is None:
            self.at = self.begin()
            if self.at is None:
                return False  # its header is incomplete
        found, sample = self.read(self.at)
        if not found:
            self.rest()
            return False
        names = next(csv.reader([self.header.decode("utf-8-sig")]))
        rows = [record for record in found if record.fields not in ([], names)]
        behind = found[-1].end
        if rows:
            self.send(self.converted(names, rows), rows, sample)
        if self.at is not None:
            self.at = self.at._replace(offset=behind, tail=sample(behind))
        return True

    # ---- the start position

    def begin(self) -> Position | None:
        """The position in object storage, or after the header; None while there is no header."""
        start, self.known = first_bytes(self.path, CHUNK_BYTES), Position()
        try:
            stored = self.client.checkpoint(*self.table, self.path.name)
            if stored.state is not None:
                self.header, self.known = stored.shared or b"", Position.of(stored.state)
                if not stored.durable:
                    self.read(self.known)  # duplicates must have come from this file
                if stored.durable_state is not None:
                    return Position.of(stored.durable_state)
                return self.behind_header()
            self.check_not_renamed(start)
        except NotFound:
            pass  # the first write creates the table
        header = next(records(start, 0), None)
        if header is None:
            if len(start) == CHUNK_BYTES:
                raise CannotRead(f"its header has no end within {CHUNK_BYTES:,} bytes")
            return None
        self.header = start[: header.end]
        return self.behind_header()

    def behind_header(self) -> Position:
        return Position(len(self.header), tail=hashed(self.header[-SAMPLE_BYTES:]))

    def check_not_renamed(self, start: bytes) -> None:
        for name, (size, head) in self.heads.items():
            if not size or hashed(start[:size]) != head:
                continue
            before = self.path.with_name(name)
            if not before.exists() or hashed(first_bytes(before, size)) != head:
                raise CannotRead(
                    f"it begins like {name}, which was read and no longer exists. If it was"
                    " renamed, restore its name, or its rows would be written twice. If it is"
                    " another file,"
                    f" `ingester checkpoints {' '.join(self.table)} --delete '{name}'`"
                )

    # ---- new records

    def read(self, at: Position) -> tuple[list[Record], "Sample"]:
        """The next complete records, after checking that the earlier bytes are unchanged."""
        seen = min(SAMPLE_BYTES, at.offset)
        with self.path.open("rb") as file:
            head = file.read(max(SAMPLE_BYTES, len(self.header)))
            file.seek(at.offset - seen)
            data = file.read(seen + CHUNK_BYTES)
            if not head.startswith(self.header) or hashed(data[:seen]) != at.tail:
                raise CannotRead(
                    f"its first {at.offset:,} bytes, which were read, have changed: it was"
                    " truncated or replaced, or has another header. Files may only grow: put new"
                    " data into the folder under another name"
                )
            found = list(records(data[seen:], at.offset))
            if not found and len(data) == seen + CHUNK_BYTES:
                data += file.read(LONGEST_RECORD)
                found = list(records(data[seen:], at.offset))
                if not found and len(data) > LONGEST_RECORD:
                    raise CannotRead(
                        f"the record at byte {at.offset:,} has no end within {LONGEST_RECORD:,}"
                        " bytes: is a quote not closed?"
                    )
        return found, Sample(head[:SAMPLE_BYTES], data, at.offset - seen)

    def converted(self, names: list[str], rows: list[Record]) -> pa.RecordBatch:
        """The rows in the types of the table; unknown columns are text."""
        try:
            table = self.client.schema(*self.table)
        except NotFound:
            table = pa.schema([])
        for record in rows:
            if len(record.fields) != len(names):
                raise CannotRead(
                    f"the record that ends at byte {record.end:,} has {len(record.fields)} fields,"
                    f" and the header {len(names)}"
                )
        columns = []
        for number, name in enumerate(names):
            texts = pa.array([row.fields[number] or None for row in rows], pa.string())
            place = table.get_field_index(name)
            try:
                columns.append(texts if place < 0 else texts.cast(table.field(place).type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
                raise CannotRead(
                    f"column {name!r} of the records before byte {rows[-1].end:,}: {exc}"
                ) from exc
        return pa.record_batch(columns, names)

    # ---- sending, exactly once

    def send(self, batch: pa.RecordBatch, rows: list[Record], sample: "Sample") -> None:
        """Send rows in batches, each with the state after it."""
        assert self.at is not None
        before, done = self.at.row, 0

        def write(end: int) -> Ack:
            nonlocal done
            assert self.writer is not None
            behind, part = rows[end - 1].end, batch.slice(done, end - done)
            self.at = Position(behind, before + end, sample.head(behind), sample(behind))
            self.sent, done, self.heads[self.path.name] = self.at.state(), end, self.at.head
            return self.writer.write(part, Checkpoint(self.path.name, self.sent, self.header))

        if self.writer is None:
            self.writer = self.client.writer(
                *self.table, batch.schema, origin=self.origin, first_sequence=before + 1,
                numbers_rows=True, keep_until_durable=True,
            )  # fmt: skip
            if write(1).result().duplicate and self.is_behind(self.known.row):
                self.leave()
                return
            (known,) = self.client.origins(self.origin, self.table)
            self.marks = known.marks
        while done < len(rows):
            mark = bisect_left(self.marks, before + done + 1)
            ends = [len(rows), done + BATCH_ROWS]
            write(min(ends if mark == len(self.marks) else [*ends, self.marks[mark] - before]))

    def is_behind(self, row: int) -> bool:
        """Whether another process has advanced beyond ``row``, so that its state is the start."""
        state = self.client.checkpoint(*self.table, self.path.name).state
        return state is not None and state != self.sent and Position.of(state).row > row

    def rest(self) -> None:
        """Close the writer once its state is durable, or was lost with the daemon's disk."""
        if self.writer is None:
            return
        self.writer.flush()
        stored = self.client.checkpoint(*self.table, self.path.name)
        if stored.state != self.sent:
            self.leave()
        elif stored.durable:
            self.writer.close()
            self.writer = None

    def leave(self) -> None:
        """Stop; the next step starts again."""
        if self.writer is not None:
            self.writer.abort()
        self.writer = self.at = None


class Sample(NamedTuple):
    """Bytes of a file: the first ones, and those from ``start`` on."""

    first: bytes
    data: bytes
    start: int

    def __call__(self, end: int) -> str:
        """A hash of the bytes before ``end``."""
        end -= self.start
        return hashed(self.data[max(0, end - SAMPLE_BYTES) : end])

    def head(self, end: int) -> tuple[int, str]:
        """The size and hash of the first bytes of a file that was read up to ``end``."""
        size = min(SAMPLE_BYTES, end)
        return size, hashed(self.first[:size])


def heads_of(client: Client, table: tuple[str, str]) -> dict[str, tuple[int, str]]:
    """The size and hash of the beginning of each known file."""
    heads = {}
    with contextlib.suppress(NotFound):  # the first write creates the table
        for each in client.checkpoints(*table):
            state = client.checkpoint(*table, each.partition).state
            with contextlib.suppress(CannotRead):  # reported when a file of this name appears
                heads[each.partition] = Position.of(state or b"").head
    return heads


def follow(client: Client, folder: Path, table: tuple[str, str], poll_s: float | None) -> int:
    """Send the records of the files; without ``poll_s``, stop at their end. The exit code."""
    files: dict[Path, GrowingFile] = {}
    heads = heads_of(client, table)
    said: dict[Path, str] = {}
    while True:
        busy = False
        for path in sorted(folder.glob("*.csv")):
            file = files.setdefault(path, GrowingFile(client, table, path, heads))
            try:
                busy |= file.step()
                said.pop(path, None)
            except (CannotRead, InvalidRequest, OSError) as exc:
                file.leave()
                if said.get(path) != str(exc):
                    said[path] = str(exc)
                    print(f"{path}: {exc}", file=sys.stderr, flush=True)
        if busy:
            continue
        if poll_s is None:
            for file in files.values():
                if file.writer is not None:
                    file.writer.close()
            return 1 if said else 0
        time.sleep(poll_s)


def main() -> int:
    parser = argparse.ArgumentParser(description="Send a folder of growing CSV files to a table.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("namespace")
    parser.add_argument("table")
    parser.add_argument("--endpoint", default="grpc://127.0.0.1:8082")
    parser.add_argument("--once", action="store_true", help="stop when there are no new records")
    parser.add_argument("--poll", type=float, default=0.5, help="polling interval in seconds")
    given = parser.parse_args()
    if not given.folder.is_dir():
        print(f"{given.folder} is not a folder", file=sys.stderr)
        return 2
    with Client(given.endpoint, retry=RetryPolicy(for_s=600)) as client:
        table = (given.namespace, given.table)
        try:
            return follow(client, given.folder, table, None if given.once else given.poll)
        except ClientError as exc:
            print(f"the daemon: {exc}; start again to continue", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130


if __name__ == "__main__":
    sys.exit(main())
