"""The names of a manifest's files, and their meaning. Pure.

    <namespace>/<table>/_current/<n:020d>              which table version is current
    <namespace>/<table>/_versions/<N:020d>             who owns number N of a table version
    <namespace>/<table>/_versions/<N>.<n>.gone         it was given up after switch n of the table
    <namespace>/<table>/_published/<n:020d>            offset of published numbers after switch n
    <namespace>/<table>/_published/<format>.json       what readers of a published format may need
    <namespace>/<table>/v1/_manifest/<V:020d>.commit
    <namespace>/<table>/v1/_manifest/<V:020d>_<uid>.changelog
    <namespace>/<table>/v1/_manifest/<V:020d>_<uid>.snapshot
    <namespace>/<table>/v1/_floor/<V:020d>             commits below it may be deleted
    _ingesters/<id>/<epoch:020d>.claim
    _ingesters/<id>/<epoch:020d>.stopped               that epoch has left nothing in its log

Numbers have 20 digits, so a listing by name is one by number. The commit of a version sorts first,
because '.' sorts before '_'. A foreign name parses to None and is left alone.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

DIGITS = 20

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_ENTRY = re.compile(
    r"(?P<version>[0-9]{20})(?:(?P<commit>\.commit)"
    r"|_(?P<uid>[0-9A-Za-z-]+)\.(?P<kind>changelog|snapshot))"
)
_NUMBER = re.compile(r"[0-9]{20}")
_GONE = re.compile(r"(?P<version>[0-9]{20})\.(?P<switch>[0-9]{20})\.gone")
_PIN = re.compile(r"(?P<format>[a-z][a-z0-9_]*)\.json")
_CLAIM = re.compile(r"(?P<epoch>[0-9]{20})\.claim")


class ManifestEntry(NamedTuple):
    """The parts of a manifest file's name; commits have no uid."""

    version: int
    kind: Literal["commit", "changelog", "snapshot"]
    uid: str


def is_name(text: str) -> bool:
    """Whether ``text`` can name a namespace, a table or an ingester."""
    return _NAME.fullmatch(text) is not None


def checked_name(text: str, what: str) -> str:
    """``text`` itself, or ``ValueError`` if it cannot name a ``what``."""
    if not is_name(text):
        raise ValueError(f"{what} {text!r} does not match {_NAME.pattern}")
    return text


def table_folder(namespace: str, table: str) -> str:
    """The folder of all versions of a table, without a final '/'."""
    return f"{checked_name(namespace, 'namespace')}/{checked_name(table, 'table')}"


def version_folder(namespace: str, table: str, version: int) -> str:
    """The folder of one version of a table, without a final '/'."""
    return f"{table_folder(namespace, table)}/v{version}"


def current_folder(namespace: str, table: str) -> str:
    """The folder of a table's switches, with its final '/'."""
    return f"{table_folder(namespace, table)}/_current/"


def claimed_folder(namespace: str, table: str) -> str:
    """The folder of the claims of a table's versions, with its final '/'."""
    return f"{table_folder(namespace, table)}/_versions/"


def published_folder(namespace: str, table: str) -> str:
    """The folder of what publishing in open formats records, with its final '/'."""
    return f"{table_folder(namespace, table)}/_published/"


def numbered(folder: str, number: int) -> str:
    """The object of a number in one of those folders."""
    return f"{folder}{number:0{DIGITS}d}"


def parse_number(name: str) -> int | None:
    """The number in such an object's name; None for a foreign name."""
    return int(name) if _NUMBER.fullmatch(name) is not None else None


def gone_path(namespace: str, table: str, version: int, switch: int) -> str:
    """The record that a table version was given up after that switch."""
    claimed = numbered(claimed_folder(namespace, table), version)
    return f"{claimed}.{switch:0{DIGITS}d}.gone"


def parse_gone(name: str) -> tuple[int, int] | None:
    """The version and the switch in such a record's name; None for a foreign name."""
    match = _GONE.fullmatch(name)
    return None if match is None else (int(match["version"]), int(match["switch"]))


def pin_path(namespace: str, table: str, format: str) -> str:
    """The pin of one published format; ``ValueError`` if it cannot name one."""
    name = f"{format}.json"
    if parse_pin(name) is None:
        raise ValueError(f"format {format!r} does not match {_PIN.pattern} without its end")
    return f"{published_folder(namespace, table)}{name}"


def parse_pin(name: str) -> str | None:
    """The format in a pin's name; None for a foreign name."""
    match = _PIN.fullmatch(name)
    return None if match is None else match["format"]


def commit_path(folder: str, version: int) -> str:
    """The commit of ``version`` in a manifest's folder (which ends with '/')."""
    return f"{folder}{version:0{DIGITS}d}.commit"


def changelog_path(folder: str, version: int, uid: str) -> str:
    """The changelog that attempt ``uid`` wrote for ``version``."""
    return f"{folder}{version:0{DIGITS}d}_{uid}.changelog"


def snapshot_path(folder: str, version: int, uid: str) -> str:
    """The snapshot of ``version`` as attempt ``uid`` committed it."""
    return f"{folder}{version:0{DIGITS}d}_{uid}.snapshot"


def before_version(folder: str, version: int) -> str:
    """A name that sorts before all files of ``version`` and after those of the previous one."""
    return f"{folder}{version:0{DIGITS}d}"


def after_version(folder: str, version: int) -> str:
    """A name that sorts after all files of ``version`` and before those of the next."""
    return f"{folder}{version:0{DIGITS}d}~"


def after_folder(folder: str) -> str:
    """A name that sorts after everything below ``folder`` (no final '/'); '0' follows '/'."""
    return f"{folder}0"


def parse_entry(path: str) -> ManifestEntry | None:
    """The parts of the name of a file in a manifest's folder; None for a foreign one."""
    match = _ENTRY.fullmatch(path.rsplit("/", 1)[-1])
    if match is None:
        return None
    version = int(match["version"])
    if match["commit"]:
        return ManifestEntry(version, "commit", "")
    return ManifestEntry(
        version, "changelog" if match["kind"] == "changelog" else "snapshot", match["uid"]
    )


def claims_folder(ingester_id: str) -> str:
    """The folder of an ingester's claims, with its final '/'."""
    return f"_ingesters/{checked_name(ingester_id, 'ingester id')}/"


def claim_path(ingester_id: str, epoch: int) -> str:
    """The claim of one epoch."""
    return f"{claims_folder(ingester_id)}{epoch:0{DIGITS}d}.claim"


def stopped_path(ingester_id: str, epoch: int) -> str:
    """The record that an epoch has stopped cleanly."""
    return f"{claims_folder(ingester_id)}{epoch:0{DIGITS}d}.stopped"


def parse_claim(path: str) -> int | None:
    """The epoch in a claim's path; None for a foreign file."""
    match = _CLAIM.fullmatch(path.rsplit("/", 1)[-1])
    return int(match["epoch"]) if match is not None else None
