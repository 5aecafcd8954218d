"""``write``: files to a table, each batch exactly once, with progress on a terminal."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from ingester.client import (
    NEVER,
    Ack,
    Client,
    ClientError,
    NotFound,
    RetryPolicy,
    Writer,
    WriteResult,
)
from ingester.config_units import parse_duration

from .exits import USAGE, CommandFailed
from .facts import print_json, print_line
from .input_files import InputFile, format_of, opened
from .text_source import TextOptions


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """Where rows go and how they are cut."""

    namespace: str
    table: str
    batch_rows: int
    origin: str | None
    first_sequence: int | None
    texts: TextOptions


class FileResult(msgspec.Struct, frozen=True):
    """What was acknowledged of one input."""

    file: str
    acknowledged: WriteResult


def write_files(
    endpoint: str,
    sending: Sending,
    names: Sequence[str],
    input_format: str | None,
    *,
    retry_for: str,
    as_json: bool,
) -> None:
    """Send every input in turn and print what was acknowledged, also of a part before a failure.

    Raises:
        CommandFailed: an input cannot be read. ClientError: the daemon refused.
    """
    kinds = [format_of(name, input_format) for name in names]
    try:
        retry = RetryPolicy(for_s=parse_duration(retry_for))
    except ValueError as exc:
        raise CommandFailed(f"--retry-for: {exc}", USAGE) from exc
    # A wrong address is told at once, not after the time for retries.
    with Client(endpoint, retry=NEVER) as asking, contextlib.suppress(NotFound):
        asking.schema(sending.namespace, sending.table)
    done: list[FileResult] = []
    began = time.monotonic()
    try:
        with Client(endpoint, retry=retry) as client, _progress() as progress:
            for name, kind in zip(names, kinds, strict=True):
                _send(client, sending, (name, kind), progress, done)
                if sending.first_sequence is not None:
                    batches = done[-1].acknowledged.batches
                    sending = msgspec.structs.replace(
                        sending, first_sequence=sending.first_sequence + batches
                    )
    finally:
        if done:
            _print_results(sending, done, time.monotonic() - began, as_json)


Step = Callable[[str, int | None], Callable[[int], None]]


def _send(
    client: Client,
    sending: Sending,
    source: tuple[str, str],
    progress: Step,
    done: list[FileResult],
) -> None:
    name, kind = source
    table_schema = None
    with contextlib.suppress(NotFound):
        table_schema = client.schema(sending.namespace, sending.table)
    with opened(name, kind, table_schema, sending.texts) as file:
        writer = client.writer(
            sending.namespace,
            sending.table,
            file.schema,
            origin=sending.origin,
            first_sequence=sending.first_sequence,
        )
        try:
            _pump(writer, file, sending.batch_rows, progress(name, file.rows))
        finally:
            done.append(FileResult(name, writer.acknowledged))


def _pump(writer: Writer, file: InputFile, batch_rows: int, advance: Callable[[int], None]) -> None:
    """Send all of it; what a failure finds unread or unsent stays behind."""
    try:
        for batch in file.batches(batch_rows):
            writer.write(batch).add_done_callback(partial(_advance, advance, int(batch.num_rows)))
    except CommandFailed:
        # The input broke off: what was sent is still answered, so that the count is right.
        with contextlib.suppress(ClientError):
            writer.close()
        raise
    except BaseException:
        writer.abort()
        raise
    writer.close()


def _advance(advance: Callable[[int], None], rows: int, ack: Ack) -> None:
    if ack.exception() is None:
        advance(rows)


@contextlib.contextmanager
def _progress() -> Iterator[Step]:
    """A way to start a bar per input, which gives a way to advance it. None without a terminal."""
    if not sys.stderr.isatty():
        yield lambda name, total: lambda rows: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} rows acknowledged"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:

        def start(name: str, total: int | None) -> Callable[[int], None]:
            task = bars.add_task(name, total=total)
            return lambda rows: bars.advance(task, rows)

        yield start


def _print_results(sending: Sending, done: list[FileResult], seconds: float, as_json: bool) -> None:
    rows = sum(result.acknowledged.rows for result in done)
    batches = sum(result.acknowledged.batches for result in done)
    duplicates = sum(result.acknowledged.duplicates for result in done)
    newest = next((d.acknowledged for d in reversed(done) if d.acknowledged.batches), WriteResult())
    if as_json:
        facts = {
            "namespace": sending.namespace,
            "table": sending.table,
            "seconds": round(seconds, 3),
            "files": [
                {"file": r.file, "rows": r.acknowledged.rows, "batches": r.acknowledged.batches}
                for r in done
            ],
        }
        total = msgspec.structs.replace(newest, rows=rows, batches=batches, duplicates=duplicates)
        print_json(facts | msgspec.structs.asdict(total))
        return
    again = f", {duplicates:,} of them known already" if duplicates else ""
    print_line(
        f"acknowledged {rows:,} rows in {batches:,} operations{again} "
        f"({seconds:.2f} s, {rows / max(seconds, 1e-9):,.0f} rows/s); "
        f"sequence {newest.sequence}, epoch {newest.epoch}"
    )
