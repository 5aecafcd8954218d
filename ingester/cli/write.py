"""``write``: send files to a table, each batch exactly once, with progress on a terminal."""

import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from ingester.client import (
    Ack,
    AckLevel,
    Client,
    ClientError,
    NotFound,
    RetryPolicy,
    TimedOut,
    UnknownOutcome,
    Unreachable,
    WriteResult,
)
from ingester.config.units import parse_duration
from ingester.shown_text import escaped

from .connecting import connect
from .exits import USAGE, CommandFailed, say_failure
from .input.files import InputFile, format_of, opened, source_of
from .input.source import TextOptions, shown
from .printing import print_json, print_line
from .row_numbers import RowSender, SentAs


class WriteArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The target table, and how its rows are read and batched."""

    namespace: str
    table: str
    batch_rows: int
    origin: str | None
    first_sequence: int | None
    skip_rows: int
    ack: AckLevel | None
    texts: TextOptions


class FileResult(msgspec.Struct):
    """Rows of one input, by what became of them."""

    file: str
    skipped_rows: int = 0
    known_rows: int = 0
    """Rows that the table already had: not sent, or acknowledged as duplicates."""
    rows_in: int = 0
    """Rows from the file's first on that are in the table or were skipped."""
    first_row: int | None = None
    """Number of the first row, if rows are numbered."""
    acknowledged: WriteResult = WriteResult()


def write_files(
    endpoint: str,
    sending: WriteArguments,
    names: Sequence[str],
    input_format: str | None,
    *,
    retry_for: str,
    as_json: bool,
) -> None:
    """Send every input in turn and print what was acknowledged, including before a failure.

    Raises:
        CommandFailed: An input cannot be read.
        ClientError: The daemon refused.
    """
    kinds = [format_of(name, input_format) for name in names]
    if sending.texts.whole_lines:
        _check_whole(names, kinds, sending.texts)
    try:
        retry = RetryPolicy(for_s=parse_duration(retry_for))
    except ValueError as exc:
        raise CommandFailed(f"--retry-for: {exc}", USAGE) from exc
    # Without retries, so that a wrong address fails at once.
    with connect(endpoint) as probe, contextlib.suppress(NotFound):
        probe.schema(sending.namespace, sending.table)
    done: list[FileResult] = []
    began = time.monotonic()
    try:
        with connect(endpoint, retry) as client, _progress() as progress:
            for name, kind in zip(names, kinds, strict=True):
                done.append(FileResult(name))
                sending = _send(client, sending, kind, progress, done[-1])
    except BaseException as exc:
        if advice := how_to_go_on(sending, names, done, exc):
            say_failure(advice)
        raise
    finally:
        done = [result for result in done if result.rows_in or result.acknowledged.batches]
        if done or sys.exc_info()[0] is None:
            _print_results(sending, done, time.monotonic() - began, as_json)


def _check_whole(names: Sequence[str], kinds: Sequence[str], texts: TextOptions) -> None:
    """Refuse an incomplete last line in any file but the last, as row numbers continue."""
    for name, kind in zip(names[:-1], kinds, strict=False):
        if kind == "csv" and source_of(name, kind, texts).breaks_off:
            raise CommandFailed(
                f"{name}: the last line has no line end. Row numbers continue from file to file, so"
                " only the last file may still grow: end the line, or write this file with another"
                " --origin"
            )


Step = Callable[[str, int | None], Callable[[int], None]]


def _send(
    client: Client, sending: WriteArguments, kind: str, progress: Step, result: FileResult
) -> WriteArguments:
    """Send an input. Returns the arguments for the next one."""
    table_schema = None
    with contextlib.suppress(NotFound):
        table_schema = client.schema(sending.namespace, sending.table)
    with opened(result.file, kind, table_schema, sending.texts) as file:
        table = (sending.namespace, sending.table)
        how = SentAs(sending.origin, sending.first_sequence, sending.ack)
        rows = RowSender(client, table, file.schema, how)
        result.first_row = rows.next_row
        try:
            _pump(rows, file, sending, (result, progress(result.file, file.rows)))
        finally:
            result.acknowledged = rows.acknowledged
            result.known_rows += rows.known_rows
            result.rows_in = result.skipped_rows + rows.known_rows + result.acknowledged.rows
    return msgspec.structs.replace(
        sending,
        first_sequence=rows.next_row if sending.origin is not None else None,
        skip_rows=sending.skip_rows - result.skipped_rows,
    )


def _pump(
    rows: RowSender,
    file: InputFile,
    sending: WriteArguments,
    tell: tuple[FileResult, Callable[[int], None]],
) -> None:
    """Send all rows of an input, or those before a failure."""
    result, advance = tell

    def answered(count: int, ack: Ack) -> None:
        if ack.exception() is None:
            advance(count)
            result.known_rows += count if ack.result().duplicate else 0

    def sent(ack: Ack, count: int) -> None:
        ack.add_done_callback(partial(answered, count))

    try:
        for batch in file.batches(sending.batch_rows):
            start = min(batch.num_rows, sending.skip_rows - result.skipped_rows)
            result.skipped_rows += start
            rows.next_row += start
            if start < batch.num_rows:
                rows.write(batch.slice(start), sent)
    except CommandFailed:
        # The input is broken. Wait for the answers, so that the count is right.
        with contextlib.suppress(ClientError):
            rows.close()
        raise
    except BaseException:
        rows.abort()
        raise
    rows.close()


def how_to_go_on(
    sending: WriteArguments, names: Sequence[str], done: Sequence[FileResult], error: BaseException
) -> str | None:
    """After a failure: which rows are in the table, and the command for the rest. None if none."""
    if not done or not sum(result.acknowledged.rows for result in done):
        return None
    last = done[-1]
    unknown = isinstance(error, UnknownOutcome | Unreachable | TimedOut | KeyboardInterrupt)
    known = f"{'at least ' if unknown else ''}{last.rows_in:,} rows of {shown(last.file)} are in"
    if sending.origin is not None:
        again = f"run the same command with --first-sequence {done[0].first_row}"
        return f"{known}; {again} to continue exactly from there"
    if unknown:
        return f"{known}, possibly more; with --origin a write can be repeated exactly"
    rest = names[len(done) - 1 :]
    skip = ["--skip-rows", str(last.rows_in)] if last.rows_in else []
    command = ["ingester", "write", sending.namespace, sending.table, *rest, *skip]
    return (
        f"{known}; continue from row {last.rows_in + 1:,} with: {shlex.join(command)}"
        " (plus the same options)"
    )


@contextlib.contextmanager
def _progress() -> Iterator[Step]:
    """A function that starts a progress bar and returns one that advances it by rows.

    Without a terminal both are no-ops.
    """
    if not sys.stderr.isatty():
        yield lambda name, total: lambda rows: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:,.0f} rows acknowledged"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:

        def start(name: str, total: int | None) -> Callable[[int], None]:
            task = bars.add_task(escaped(name), total=total)
            return lambda rows: bars.advance(task, rows)

        yield start


def _print_results(
    sending: WriteArguments, done: Sequence[FileResult], seconds: float, as_json: bool
) -> None:
    rows = sum(result.rows_in - result.skipped_rows for result in done)
    batches = sum(result.acknowledged.batches for result in done)
    duplicates = sum(result.acknowledged.duplicates for result in done)
    known = sum(result.known_rows for result in done)
    if known and known == rows:
        say_failure(
            f"warning: origin {sending.origin!r}: all {rows:,} rows were known, so nothing was"
            " added. If these are new rows, use another --origin, or a higher --first-sequence"
        )
    sent = [each.acknowledged for each in done if each.acknowledged.batches]
    newest = sent[-1] if sent else WriteResult()
    level = "store" if sent and all(each.ack == "store" for each in sent) else "disk"
    if as_json:
        facts = {
            "namespace": sending.namespace,
            "table": sending.table,
            "seconds": round(seconds, 3),
            "known_rows": known,
            "files": [
                {
                    "file": r.file,
                    "rows": r.rows_in - r.skipped_rows,
                    "batches": r.acknowledged.batches,
                }
                for r in done
            ],
        }
        total = msgspec.structs.replace(
            newest, rows=rows, batches=batches, duplicates=duplicates, ack=level
        )
        print_json(facts | msgspec.structs.asdict(total))
        return
    again = f", {known:,} of these rows already known" if known else ""
    where = " in object storage" if level == "store" else ""
    last = "" if newest.sequence is None else f"; sequence {newest.sequence}, epoch {newest.epoch}"
    print_line(
        f"acknowledged {rows:,} rows in {batches:,} operations{where}{again} "
        f"({seconds:.2f} s, {rows / max(seconds, 1e-9):,.0f} rows/s){last}"
    )
