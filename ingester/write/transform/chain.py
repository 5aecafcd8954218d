"""The transformers of one stream: an instance of each class, in order.

    batch ─▶ first ─▶ second ─▶ … ─▶ a batch of the schema that the stream was opened with
               └─ SKIP ─▶ no rows of that schema

The output has the announced schema and valid rows; anything else is refused with the name of the
class. A batch without rows is not shown to transformers and stays without rows: its sequence and
checkpoint count. One thread at a time.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import structlog

from ingester.errors import BadRequest, IngesterError, Refused, TooSlow
from ingester.schema.limits import LARGEST, check_column_names, check_schema
from ingester.schema.normalise import validate_fully
from ingester.transform import SKIP, UNCHANGED, Transformer
from ingester.write.transform.loading import LoadedTransformer
from ingester.write.transform.pool import GivenUp, TransformPool, UserCodeFailed

log = structlog.get_logger(__name__)

FAILURES_EVERY_S = 10.0
"""A class has at most one failure logged in this time; the next line has the number left out."""
FRAMES = 5
MOST_CHARACTERS = 2000

Outcome = Literal["changed", "unchanged", "skipped", "failed", "timed_out", "refused"]


Observe = Callable[[str, Outcome, float, int, int], object]
"""A callback that counts a call: class, outcome, seconds, rows in, rows out. Any thread; quick."""


class FailureLog:
    """Logs failures of users' code, not too often. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[str, tuple[float, int]] = {}
        """When a failure of a class was logged last, and how many were left out since."""

    def tell(self, event: str, name: str, error: BaseException) -> None:
        """Log that ``event`` happened to the class ``name``."""
        text = "".join(traceback.format_exception(error, limit=-FRAMES))[-MOST_CHARACTERS:]
        _clear_frames(error)
        now = time.monotonic()
        with self._lock:
            at, left_out = self._told.get(name, (-FAILURES_EVERY_S, 0))
            due = now - at >= FAILURES_EVERY_S
            self._told[name] = (now, 0) if due else (at, left_out + 1)
        if due:
            log.warning(
                event,
                transformer=name,
                error=text,
                left_out=left_out,
                runbook="transformer-failed",
            )


class Surroundings(NamedTuple):
    """Shared by all chains of a daemon."""

    pool: TransformPool
    max_batch_bytes: int
    """``flight.max_batch_bytes``, which also bounds a transformer's output."""
    observe: Observe
    failures: FailureLog


class _Step(NamedTuple):
    loaded: LoadedTransformer
    instance: Transformer
    schema: pa.Schema
    unchanged: bool
    """Whether UNCHANGED is a valid answer."""


class Chain:
    """Takes the batches of a stream through its transformers. In the thread that reads them.

    Args:
        sent: the schema of the incoming batches.

    Raises:
        BadRequest: a class cannot be instantiated, or has no output schema for ``sent``.
        TooSlow, Saturated: see :class:`TransformPool`.
    """

    def __init__(
        self, surroundings: Surroundings, classes: Sequence[LoadedTransformer], sent: pa.Schema
    ) -> None:
        check_names(sent)
        self._pool, self._max_batch_bytes, self._observe, self._failures = surroundings
        self._steps: list[_Step] = []
        self._hung: set[str] = set()
        self.schema = sent
        """The schema of the output."""
        try:
            for loaded in classes:
                self._add(loaded)
        except BaseException:
            self.close()
            raise
        self._nothing = _no_rows(self.schema)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(step.loaded.name for step in self._steps)

    @property
    def used(self) -> tuple[tuple[str, str], ...]:
        """The classes with their versions."""
        return tuple((step.loaded.name, step.loaded.version) for step in self._steps)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch to write in place of a valid one.

        Raises:
            BadRequest: a transformer has raised, or its output is invalid.
            TooSlow, Saturated: see :class:`TransformPool`.
        """
        for step in self._steps:
            if not batch.num_rows:
                break
            batch = self._take_through(step, batch)
        return batch if batch.num_rows else self._nothing

    def close(self) -> None:
        """Close the instances, the last one first. Errors are logged."""
        while self._steps:
            loaded, instance, *_ = self._steps.pop()
            if loaded.name in self._hung:
                continue  # the hanging call closes it if it ever returns
            try:
                self._pool.run(loaded.name, instance.close)
            except UserCodeFailed as exc:
                self._failures.tell("transformer not closed", loaded.name, exc.error)
            except (GivenUp, IngesterError) as exc:
                self._failures.tell("transformer not closed", loaded.name, exc)

    def _add(self, loaded: LoadedTransformer) -> None:
        sent = self.schema

        def make() -> tuple[Transformer, Any]:
            instance = loaded.make()
            return instance, instance.output_schema(sent)

        def late(made: tuple[Transformer, Any] | None) -> None:
            if made is not None:
                self._close_late(loaded.name, made[0])

        try:
            instance, schema = self._pool.run(loaded.name, make, late=late)
        except UserCodeFailed as exc:
            raise self._refusal(loaded.name, exc.error) from None
        except GivenUp as exc:
            raise exc.refusal from None
        self._steps.append(_Step(loaded, instance, sent, False))  # added now, so that it is closed
        if not isinstance(schema, pa.Schema):
            raise BadRequest(
                f"transformer {loaded.name}: output_schema returned {type(schema).__name__},"
                " not a pyarrow.Schema"
            )
        try:
            check_names(schema)
        except BadRequest as exc:
            raise BadRequest(f"transformer {loaded.name}: {exc.message}") from exc
        same = _columns(schema) == _columns(sent)
        self._steps[-1] = _Step(loaded, instance, schema, same)
        self.schema = schema

    def _take_through(self, step: _Step, batch: pa.RecordBatch) -> pa.RecordBatch:
        name, rows = step.loaded.name, batch.num_rows
        began = time.monotonic()
        outcome: Outcome = "failed"
        made = None
        try:
            answer = self._pool.run(
                name,
                partial(step.instance.transform, batch),
                late=lambda _: self._close_late(name, step.instance),
            )
            made = self._checked(step, batch, answer)
            outcome = _outcome(answer)
            return made
        except UserCodeFailed as exc:
            raise self._refusal(name, exc.error) from None
        except GivenUp as exc:
            self._hung.add(name)
            outcome = "timed_out"
            raise exc.refusal from None
        except (TooSlow, Refused):
            outcome = "refused"
            raise
        finally:
            rows_out = 0 if made is None else made.num_rows
            self._observe(name, outcome, time.monotonic() - began, rows, rows_out)

    def _checked(self, step: _Step, batch: pa.RecordBatch, answer: Any) -> pa.RecordBatch:
        name = step.loaded.name
        if answer is SKIP:
            return _no_rows(step.schema)
        if answer is UNCHANGED:
            if not step.unchanged:
                raise BadRequest(
                    f"transformer {name}: transform returned UNCHANGED, but output_schema says"
                    f" {_difference(_columns(batch.schema), _columns(step.schema))}"
                )
            return batch
        if not isinstance(answer, pa.RecordBatch):
            raise BadRequest(
                f"transformer {name}: transform returned {type(answer).__name__}, not a"
                " pyarrow.RecordBatch, SKIP or UNCHANGED"
            )
        if _columns(answer.schema) != _columns(step.schema):
            raise BadRequest(
                f"transformer {name}: transform returned other columns than output_schema says:"
                f" {_difference(_columns(answer.schema), _columns(step.schema))}"
            )
        if (nbytes := answer.get_total_buffer_size()) > self._max_batch_bytes:
            # A slice counts for what it is cut from: by its own bytes it may fit.
            nbytes = answer.nbytes
            if nbytes > self._max_batch_bytes:
                raise BadRequest(
                    f"transformer {name}: made a batch of {nbytes} B; flight.max_batch_bytes is"
                    f" {self._max_batch_bytes}: send smaller batches"
                )
            answer = pa.concat_batches([answer, _no_rows(answer.schema)])
        try:
            validate_fully([answer])
        except pa.ArrowInvalid as exc:
            raise BadRequest(f"transformer {name}: made a batch that is not valid: {exc}") from exc
        # With the announced nullability: a plan belongs to one schema.
        return pa.RecordBatch.from_arrays(answer.columns, schema=step.schema)

    def _refusal(self, name: str, error: BaseException) -> BadRequest:
        refusal = BadRequest(f"transformer {name}: {type(error).__name__}: {error}")
        self._failures.tell("transformer failed", name, error)
        return refusal

    def _close_late(self, name: str, instance: Transformer) -> None:
        try:
            instance.close()
        except BaseException as exc:  # an error of the class, with no caller
            self._failures.tell("transformer not closed", name, exc)


def check_names(schema: pa.Schema) -> None:
    """Raise ``BadRequest`` for invalid or repeated column names."""
    check_schema("the schema", schema, LARGEST)
    try:
        check_column_names(schema.names, ())
    except UnicodeDecodeError as exc:
        raise BadRequest(f"the schema has a name that is not UTF-8: {exc.reason}") from exc


def _outcome(answer: Any) -> Outcome:
    if answer is SKIP:
        return "skipped"
    return "unchanged" if answer is UNCHANGED else "changed"


def _columns(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in schema]


def _difference(have: list[tuple[str, pa.DataType]], said: list[tuple[str, pa.DataType]]) -> str:
    def shown(columns: list[tuple[str, pa.DataType]]) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in columns) or "none"

    only = [column for column in have if column not in said]
    lacking = [column for column in said if column not in have]
    if not only and not lacking:
        return f"the order {shown(said)}, the batch has {shown(have)}"
    return f"{shown(lacking)}, where the batch has {shown(only)}"


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


def _clear_frames(error: BaseException | None) -> None:
    """Clear the frames of an error that was logged: it keeps no batch."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
