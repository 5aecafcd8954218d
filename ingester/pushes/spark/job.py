"""The Spark job that writes a push's data: in a thread of its own, so that it can be cancelled.

    frame ─▶ arranged ─▶ mapInArrow(WriteTask) ─▶ files and counts of the winners ─▶ checked

Law of this file: what comes out was counted twice, as rows that came in and as rows in files, and
is refused where the two differ. A job that was cancelled, or has failed, has written nothing that
counts.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence

from pyspark import InheritableThread
from pyspark.sql import DataFrame, Row
from pyspark.sql import types as T

from ingester.pushes.spark.arrange import arranged, named
from ingester.pushes.spark.data_list import DataList
from ingester.pushes.spark.task import WriteTask, decode_file

RESULT = T.StructType([T.StructField("rows", T.LongType()), T.StructField("file", T.BinaryType())])
_REFUSAL = re.compile(r"^(?:\w+\.)*WriteRefused: (.*)$", re.MULTILINE)
_ERROR = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Interrupt)): (.*)$", re.MULTILINE)
_LONGEST_REASON = 500


class DataMiscounted(Exception):
    """The rows of the files are not those that were to be written."""


class WriteJob:
    """The job of one push; it is started once."""

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
        """What was written; None until it is, and where it could not be."""
        self.reason = ""
        """Why nothing was written."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def cancel(self) -> None:
        """Have Spark end the job, and return at once; to be called until it is ``done``."""
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
            raise DataMiscounted(f"{rows} rows came to the tasks, and their files have {in_files}")
        if self._expected is not None and rows != self._expected:
            raise DataMiscounted(f"the frame had {rows} rows, and {self._expected} were expected")
        places = {place.region: place.root for place in self._task.places}
        return DataList(rows=rows, places=places, files=tuple(files))


def reason_of(exc: Exception) -> str:
    """Return why a job has failed: of a task's long traceback the one line that tells."""
    text = str(exc)
    if found := _REFUSAL.search(text):
        return found[1]
    errors = _ERROR.findall(text)
    if errors:
        kind, said = errors[-1]
        return f"{kind.rpartition('.')[2]}: {said}"[:_LONGEST_REASON]
    lines = [line for line in text.splitlines() if line.strip()]
    return f"{type(exc).__name__}: {lines[0] if lines else 'it says nothing'}"[:_LONGEST_REASON]
