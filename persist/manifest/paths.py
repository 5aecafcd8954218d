"""The names of a manifest's files, and what they say.

    <namespace>/<table>/_current/<n:020d>              which table version counts
    <namespace>/<table>/_versions/<N:020d>             whose number N of a table version is
    <namespace>/<table>/_versions/<N>.<n>.gone         it was given up after switch n of the table
    <namespace>/<table>/v1/_manifest/<V:020d>.commit
    <namespace>/<table>/v1/_manifest/<V:020d>_<uid>.changelog
    <namespace>/<table>/v1/_manifest/<V:020d>_<uid>.snapshot
    <namespace>/<table>/v1/_floor/<V:020d>             below it clean-up may have deleted commits
    _ingesters/<id>/<epoch:020d>.claim
    _ingesters/<id>/<epoch:020d>.stopped               that epoch has left nothing in its log

Law of this file: pure. Numbers have 20 digits, so that a listing by name is one by number; of one
version the commit comes first, because '.' sorts before '_'. A foreign name is no error: it parses
to None and is left alone.
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
_CLAIM = re.compile(r"(?P<epoch>[0-9]{20})\.claim")


class Entry(NamedTuple):
    """The parts of a manifest file's name; commits have no uid in theirs."""

    version: int
    kind: Literal["commit", "changelog", "snapshot"]
    uid: str


def is_name(text: str) -> bool:
    """Whether ``text`` can name a namespace, a table or an ingester."""
    return _NAME.fullmatch(text) is not None


def checked_name(text: str, what: str) -> str:
    """``text`` itself, or ``ValueError`` when it cannot name a ``what``."""
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
    """The folder that says which version of a table counts, with its final '/'."""
    return f"{table_folder(namespace, table)}/_current/"


def claimed_folder(namespace: str, table: str) -> str:
    """The folder that says whose the numbers of a table's versions are, with its final '/'."""
    return f"{table_folder(namespace, table)}/_versions/"


def numbered(folder: str, number: int) -> str:
    """The object of a number in one of those two folders."""
    return f"{folder}{number:0{DIGITS}d}"


def parse_number(name: str) -> int | None:
    """The number that such an object's name says; None for a foreign one."""
    return int(name) if _NUMBER.fullmatch(name) is not None else None


def gone_path(namespace: str, table: str, version: int, switch: int) -> str:
    """The word that a table version was given up when that switch was the last."""
    claimed = numbered(claimed_folder(namespace, table), version)
    return f"{claimed}.{switch:0{DIGITS}d}.gone"


def parse_gone(name: str) -> tuple[int, int] | None:
    """The version and the switch that such an object's name says; None for a foreign one."""
    match = _GONE.fullmatch(name)
    return None if match is None else (int(match["version"]), int(match["switch"]))


def commit_path(folder: str, version: int) -> str:
    """The commit of ``version`` in a manifest's folder (that ends with '/')."""
    return f"{folder}{version:0{DIGITS}d}.commit"


def changelog_path(folder: str, version: int, uid: str) -> str:
    """The changelog that attempt ``uid`` wrote for ``version``."""
    return f"{folder}{version:0{DIGITS}d}_{uid}.changelog"


def snapshot_path(folder: str, version: int, uid: str) -> str:
    """The snapshot of ``version`` as attempt ``uid`` committed it."""
    return f"{folder}{version:0{DIGITS}d}_{uid}.snapshot"


def before_version(folder: str, version: int) -> str:
    """A name that sorts before all files of ``version`` and after those of the one below."""
    return f"{folder}{version:0{DIGITS}d}"


def after_version(folder: str, version: int) -> str:
    """A name that sorts after all files of ``version`` and before those of the next."""
    return f"{folder}{version:0{DIGITS}d}~"


def after_folder(folder: str) -> str:
    """A name that sorts after everything below ``folder`` (no final '/'); '0' follows '/'."""
    return f"{folder}0"


def parse_entry(path: str) -> Entry | None:
    """The parts of the name of a file in a manifest's folder; None for a foreign one."""
    match = _ENTRY.fullmatch(path.rsplit("/", 1)[-1])
    if match is None:
        return None
    version = int(match["version"])
    if match["commit"]:
        return Entry(version, "commit", "")
    return Entry(version, "changelog" if match["kind"] == "changelog" else "snapshot", match["uid"])


def claims_folder(ingester_id: str) -> str:
    """The folder of an ingester's claims, with its final '/'."""
    return f"_ingesters/{checked_name(ingester_id, 'ingester id')}/"


def claim_path(ingester_id: str, epoch: int) -> str:
    """The claim of one epoch."""
    return f"{claims_folder(ingester_id)}{epoch:0{DIGITS}d}.claim"


def stopped_path(ingester_id: str, epoch: int) -> str:
    """The word that an epoch has stopped cleanly."""
    return f"{claims_folder(ingester_id)}{epoch:0{DIGITS}d}.stopped"


def parse_claim(path: str) -> int | None:
    """The epoch that a claim's path names; None for a foreign file."""
    match = _CLAIM.fullmatch(path.rsplit("/", 1)[-1])
    return int(match["epoch"]) if match is not None else None
