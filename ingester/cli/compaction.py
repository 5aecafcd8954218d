"""``ingester compact``: merge the small files of tables in this process, without a daemon.

After each commit a progress line goes to standard error; the report goes to standard output, with
``--json`` as one object per table. Exit code 0: done; 1: groups are left because of conflicts or
for want of memory, or a table failed; 2: wrong arguments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import msgspec
import typer

from ingester.client.errors import InvalidRequest
from ingester.client.filter_parser import Disjunction, parse_filter
from ingester.config.secret_values import secret_value
from ingester.secret_texts import remember_options
from persist.compaction import (
    CompactionReport,
    FileSelection,
    InProcess,
    Rewriting,
    plan_compaction,
)
from persist.manifest import Manifest, ManifestError
from persist.parquet.reading import FileDamaged
from persist.predicate.files import filter_schema, may_have_matches
from persist.predicate.parse import parse_predicate
from persist.store import StoreError
from persist.table import TableDefinition

from .exits import FAILED, USAGE, CommandFailed, say_failure
from .manifest_tools import chosen
from .printing import print_line, say

WAVE_BYTES = 512 << 20
"""Maximum bytes of one commit, which an interrupted command loses."""


def run_compaction(
    url: str,
    names: tuple[str | None, str | None],
    sources: tuple[Path | None, Mapping[str, object]],
    target_file_bytes: int,
    filter_: str | None,
    as_json: bool,
) -> None:
    """Compact each table and print its report; exit 1 if something is left.

    Args:
        names: Namespace and table, of all by default.
        sources: The settings file, and settings.
    """
    try:
        asked = None if filter_ is None else parse_filter(filter_)
    except InvalidRequest as exc:
        raise CommandFailed(f"--filter: {exc}", USAGE) from exc
    tables = chosen(url, *names, *sources)
    remember_options(tables.settings.store_options)
    failed = False
    for manifest in tables.manifests:
        runner = InProcess(tables.store, tables.settings.memory.limit)
        rewriting = Rewriting(manifest, runner, target_file_bytes, partial(_selection, asked))
        rewriting.wave_bytes, rewriting.progress = WAVE_BYTES, _progress
        try:
            report = rewriting.run([plan_compaction])
        except (ManifestError, StoreError, FileDamaged, ValueError) as exc:
            say_failure(f"{_name(manifest)}: {exc}")
            failed = True
            continue
        except MemoryError:
            say_failure(f"{_name(manifest)}: out of memory: give a smaller --memory")
            failed = True
            continue
        failed = failed or report.left > 0
        print_line(msgspec.json.encode(asdict(report)).decode() if as_json else report.text())
    if failed:
        raise typer.Exit(FAILED)


def store_options(pairs: Sequence[str]) -> dict[str, object]:
    """The settings of ``NAME=VALUE`` pairs of ``--store-option``."""
    flags: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise CommandFailed(f"--store-option {name!r} is not NAME=VALUE", USAGE)
        try:
            flags[f"store_options.{name}"] = secret_value(value)
        except ValueError as exc:
            raise CommandFailed(f"--store-option {name}: {exc}", USAGE) from exc
    return flags


def _selection(asked: Disjunction | None, definition: TableDefinition) -> FileSelection:
    predicate = parse_predicate(asked, filter_schema(definition))
    return partial(may_have_matches, predicate, definition)


def _progress(report: CompactionReport, done: int, planned: int) -> None:
    say(report.progress_text(done, planned))


def _name(manifest: Manifest) -> str:
    return f"{manifest.namespace}/{manifest.table}"
