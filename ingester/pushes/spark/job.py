"""The Spark job that writes a push's data, and the list of files that it decides on.

    frame ─▶ arranged ─▶ mapInArrow(WriteTask) ─▶ files and counts of the winners ─▶ checked
                                                                                        │
    _pushes/<push id>/data     what was written: zstd of msgpack, created once ◀── decide

Rows are counted twice, as input and as rows in files, and the job fails if the counts differ. A job
that fails or is cancelled has written nothing that counts. If two drivers have written the data of
a push, the first list counts; the files of the other driver are garbage. So all regions get the
same files, whichever driver is killed when (tests/pushes/test_spark_push_killed).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa
from pyspark import InheritableThread
from pyspark.sql import DataFrame, Row
from pyspark.sql import types as T

from ingester.pushes.spark.frames import arranged, named
from ingester.pushes.spark.task import WriteTask, WrittenFile, decode_file
from ingester.pushes.store import FOLDER, RETRY, PushDamaged
from persist.store import AlreadyExists, ObjectNotFound, ObjectStore, retry

RESULT = T.StructType([T.StructField("rows", T.LongType()), T.StructField("file", T.BinaryType())])
_REFUSAL = re.compile(r"^(?:\w+\.)*WriteRefused: (.*)$", re.MULTILINE)
_ERROR = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Interrupt)): (.*)$", re.MULTILINE)
_LONGEST_REASON = 500


class DataList(msgspec.Struct, frozen=True, kw_only=True):
    """The files that the tasks of a push have written.

    Attributes:
        places: the folder of the push's generation, by region.
    """

    rows: int
    places: Mapping[str, str]
    files: tuple[WrittenFile, ...]

    @property
    def file_bytes(self) -> int:
        """The total size of the files in one region."""
        return sum(file.add.bytes for file in self.files)

    @property
    def written(self) -> tuple[int, int, int]:
        """Rows, files and bytes."""
        return self.rows, len(self.files), self.file_bytes

    def complete_in(self, region: str) -> bool:
        """Whether the region has all files."""
        return region in self.places and self.count_in(region) == len(self.files)

    def count_in(self, region: str) -> int:
        """The number of files that the region has."""
        return sum(region in file.taken for file in self.files)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(DataList).decode
_CODEC = "zstd"
_LENGTH = 8


def read_data_list(store: ObjectStore, push_id: str) -> DataList | None:
    """Return the list of a push; None if it is not decided.

    Raises:
        PushDamaged: it cannot be decoded.
        StoreError: the store does not answer.
    """
    path = _list_path(push_id)
    try:
        data = retry(lambda: store.get(path), RETRY)
    except ObjectNotFound:
        return None
    try:
        size = int.from_bytes(data[:_LENGTH], "little")
        plain = pa.Codec(_CODEC).decompress(data[_LENGTH:], size, asbytes=True)
        return _decode(plain)
    except (msgspec.DecodeError, pa.ArrowException, OSError, ValueError, OverflowError) as exc:
        raise PushDamaged(f"{store.url}/{path}: {exc}") from exc


def decide(store: ObjectStore, push_id: str, written: DataList) -> DataList:
    """Save a list unless one exists, and return the one that counts.

    Raises:
        PushDamaged: the existing one cannot be decoded.
        StoreError: the store does not answer.
    """
    plain = _encode(written)
    packed = pa.Codec(_CODEC).compress(plain, asbytes=True)
    data = len(plain).to_bytes(_LENGTH, "little") + packed
    path = _list_path(push_id)

    def attempt() -> DataList:
        try:
            store.create(path, data)
        except AlreadyExists:
            found = read_data_list(store, push_id)
            assert found is not None
            return found
        return written

    return retry(attempt, RETRY)


def _list_path(push_id: str) -> str:
    return f"{FOLDER}/{push_id}/data"


class DataMiscounted(Exception):
    """The number of rows in the files is not the expected one."""


class WriteJob:
    """The job of one push, in a thread of its own so that it can be cancelled."""

    def __init__(
        self, frame: DataFrame, task: WriteTask, push_id: str, expected_rows: int | None = None
    ) -> None:
        self._frame = frame
        self._task = task
        self._expected = expected_rows
        self._context = frame.sparkSession.sparkContext
        self._tag = f"ingester-push-{push_id}"
        self._cancelled = threading.Event()
        self._thread = InheritableThread(target=self._run, daemon=True, name="push-write")
        self.done = threading.Event()
        self.written: DataList | None = None
        """The written files; None before that, and after a failure."""
        self.reason = ""
        """Why nothing was written."""

    def start(self) -> None:
        """Start the job, once."""
        self._thread.start()

    def cancel(self) -> None:
        """Ask Spark to end the job; returns at once. Call again until it is ``done``."""
        self._cancelled.set()
        self._context.cancelJobsWithTag(self._tag)

    def _run(self) -> None:
        try:
            self._context.addJobTag(self._tag)
            self._context.setLocalProperty("spark.job.description", self._tag)
            if not self._cancelled.is_set():
                self.written = self._checked(self._answers())
        except Exception as exc:
            self.reason = reason_of(exc)
        finally:
            self.done.set()

    def _answers(self) -> list[Row]:
        table, frame = self._task.definition, self._frame
        columns = [named(name) for name in frame.columns if name in table.schema.names]
        rows = arranged(frame.select(*columns), table)
        return rows.mapInArrow(self._task.function(), RESULT).collect()

    def _checked(self, answers: Sequence[Row]) -> DataList:
        rows = sum(answer["rows"] for answer in answers if answer["file"] is None)
        files = [decode_file(bytes(row["file"])) for row in answers if row["file"] is not None]
        in_files = sum(file.add.rows for file in files)
        if rows != in_files:
            raise DataMiscounted(f"the tasks received {rows} rows, and their files have {in_files}")
        if self._expected is not None and rows != self._expected:
            raise DataMiscounted(
                f"the frame had {rows} rows instead of the expected {self._expected}"
            )
        places = {place.region: place.root for place in self._task.places}
        return DataList(rows=rows, places=places, files=tuple(files))


def reason_of(exc: Exception) -> str:
    """Return why a job has failed: the decisive line of a task's traceback."""
    text = str(exc)
    if found := _REFUSAL.search(text):
        return found[1]
    errors = _ERROR.findall(text)
    if errors:
        kind, said = errors[-1]
        return f"{kind.rpartition('.')[2]}: {said}"[:_LONGEST_REASON]
    lines = [line for line in text.splitlines() if line.strip()]
    return f"{type(exc).__name__}: {lines[0] if lines else 'no message'}"[:_LONGEST_REASON]
