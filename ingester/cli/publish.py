"""``ingester publish``: a store's tables as Iceberg and Delta, without a daemon.

``on`` and ``off`` commit the table's property ``publish``, which every daemon follows; ``on``
publishes at once as well.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import typer
from msgspec.structs import asdict

from ingester.config.settings import Settings
from ingester.config.units import parse_duration
from persist.manifest import Manifest, Proposal, WriterIdentity, commit, read_pins
from persist.publish.format import FORMATS, FormatName
from persist.publish.publisher import FormatStatus, Publisher
from persist.table import TableDefinition

from .exits import FAILED, USAGE, CommandFailed
from .manifest_tools import chosen
from .printing import print_json, print_table, say

Verb = Literal["now", "on", "off", "status"]
_VERBS: tuple[Verb, ...] = ("on", "off", "status")


def run_publish(
    words: Sequence[str],
    formats: Sequence[str],
    max_age: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Run the command. Exit code 1 if a table is not published as it should be.

    Raises:
        CommandFailed: invalid arguments, or the store or a manifest cannot be read.
    """
    verb, url, namespace, table = _parsed(words)
    asked = _formats(formats)
    if max_age is not None and verb != "on":
        raise CommandFailed("--max-age belongs to `ingester publish on`", USAGE)
    tables = chosen(url, namespace, table, config)
    retain_s = tables.settings.manifest.retain
    act: Callable[[Manifest], list[FormatStatus]] = {
        "now": lambda each: _publish(each, asked or _formats_of(each, tables.settings), retain_s),
        "on": lambda each: _switch_on(each, asked or FORMATS, max_age, tables.settings),
        "off": lambda each: _switch_off(each, asked or FORMATS, tables.settings),
        "status": lambda each: _status(each, asked or FORMATS, tables.settings),
    }[verb]
    found = tables.each(lambda each: (each, act(each)))
    if verb == "now" and not any(statuses for _, statuses in found):
        raise CommandFailed(
            "none of these tables is published: give --format, or run `ingester publish on`"
        )
    _print(found, as_json)
    if any(one.refused or one.error for _, statuses in found for one in statuses):
        raise typer.Exit(FAILED)


def _parsed(words: Sequence[str]) -> tuple[Verb, str, str | None, str | None]:
    verb: Verb = "now"
    if words and words[0] in _VERBS:
        verb, words = words[0], words[1:]
    if not 1 <= len(words) <= 3:
        raise CommandFailed("publish takes [on|off|status] URL [NAMESPACE [TABLE]]", USAGE)
    url, namespace, table = [*words, None, None][:3]
    assert url is not None
    return verb, url, namespace, table


def _formats(names: Sequence[str]) -> tuple[FormatName, ...]:
    for name in names:
        if name not in FORMATS:
            raise CommandFailed(f"--format {name!r} is not one of {', '.join(FORMATS)}", USAGE)
    return tuple(cast("FormatName", name) for name in dict.fromkeys(names))


def _publisher(manifest: Manifest) -> Publisher:
    return Publisher(manifest.store, manifest.namespace, manifest.table)


def _formats_of(manifest: Manifest, settings: Settings) -> tuple[FormatName, ...]:
    """The formats that the table is published in, or is to be."""
    there = _published_now(manifest, TableDefinition.of_state(manifest.load()), settings)
    return tuple(name for name in FORMATS if name in there)


def _publish(
    manifest: Manifest, formats: Collection[FormatName], retain_s: float
) -> list[FormatStatus]:
    return _publisher(manifest).publish(formats, retain_s=retain_s) if formats else []


def _status(
    manifest: Manifest, formats: Collection[FormatName], settings: Settings
) -> list[FormatStatus]:
    """The statuses of the formats that the table is, was, or should be published in."""
    wanted = _formats_of(manifest, settings)
    found = _publisher(manifest).status(formats)
    return [one for one in found if one.format in wanted or one.head is not None or one.refused]


def _switch_on(
    manifest: Manifest,
    formats: Collection[FormatName],
    max_age: str | None,
    settings: Settings,
) -> list[FormatStatus]:
    """Switch on the formats that can express the table, and publish it."""
    publisher = _publisher(manifest)
    definition = TableDefinition.of_state(manifest.load())
    able = [name for name in formats if not publisher.unsupported(name, definition)]
    if able:
        max_age_s = None if max_age is None else _seconds(max_age)
        _change(manifest, settings, set(able), set(), max_age_s)
    return publisher.publish(formats, retain_s=settings.manifest.retain)


def _switch_off(
    manifest: Manifest, formats: Collection[FormatName], settings: Settings
) -> list[FormatStatus]:
    name = f"{manifest.namespace}/{manifest.table}"
    if set(formats) & set(settings.formats_of(manifest.namespace, manifest.table, ())):
        raise CommandFailed(
            f'the setting publish of [tables."{name}"] keeps {name} published: change it instead'
        )
    _change(manifest, settings, set(), set(formats))
    publisher = _publisher(manifest)
    for name in formats:
        publisher.switch_off(name)
    say(f"{manifest.namespace}/{manifest.table}: no longer published as {', '.join(formats)}")
    return []


def _change(
    manifest: Manifest,
    settings: Settings,
    on: set[FormatName],
    off: set[FormatName],
    max_age_s: float | None = None,
) -> None:
    """Commit the property with these formats switched on and off, and the others as they are."""
    state = manifest.load()
    definition = TableDefinition.of_state(state)
    wanted_now = (_published_now(manifest, definition, settings) | on) - off
    formats = tuple(name for name in FORMATS if name in wanted_now)
    wanted = replace(
        definition,
        publish=formats,
        max_age_s=definition.max_age_s if max_age_s is None else max_age_s,
    )
    if wanted != definition:
        writer = WriterIdentity("_publish", uuid.uuid4().hex[:16], 0)
        commit(manifest, state, Proposal([wanted.properties_action()]), writer)


def _published_now(manifest: Manifest, definition: TableDefinition, settings: Settings) -> set[str]:
    key, own = (manifest.namespace, manifest.table), definition.publish
    if own is not None:
        return set(settings.formats_of(*key, own))
    # Settings decide, and those of the daemons may not be known here: a pin shows what they did.
    return {*settings.formats_of(*key, None), *read_pins(manifest.store, *key)}


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as exc:
        raise CommandFailed(f"--max-age: {exc}", USAGE) from exc
    if seconds < 0.01:
        raise CommandFailed(f"--max-age {text!r} is below 10ms", USAGE)
    return seconds


def _print(found: Sequence[tuple[Manifest, list[FormatStatus]]], as_json: bool) -> None:
    facts = [
        {"namespace": manifest.namespace, "table": manifest.table} | _facts(one, pinned)
        for manifest, statuses in found
        for pinned in [read_pins(manifest.store, manifest.namespace, manifest.table)]
        for one in statuses
    ]
    if as_json:
        print_json(facts)
        return
    headings = ["table", "format", "version", "behind", "location"]
    rows = [
        (
            f"{one['namespace']}/{one['table']}",
            one["format"],
            "" if one["version"] is None else str(one["version"]),
            _behind(one),
            one["location"] or "",
        )
        for one in facts
    ]
    if rows:
        print_table(headings, rows)
    for one in facts:
        for told in (one["refused"], one["error"]):
            if told:
                say(told)


def _facts(one: FormatStatus, pinned: Collection[str]) -> dict[str, Any]:
    facts = asdict(one)
    del facts["head"]
    head = one.head
    return facts | {
        "version": None if head is None else head.place.number,
        "location": None if head is None else head.location,
        "switched_off": head is not None and one.format not in pinned,
    }


def _behind(one: dict[str, Any]) -> str:
    if one["switched_off"]:
        return "switched off"
    if not one["versions_behind"]:
        return "up to date"
    count = one["versions_behind"]
    return f"{count:,} version{'' if count == 1 else 's'}, {one['seconds_behind']:.0f} s"
