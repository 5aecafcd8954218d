"""The versions of a table as a whole: ``v1``, ``v2``, …, and which of them is current.

    claim_version(store, …, push_id)     a number that no other push gets
    switches(store, …)                   the switches in order; the last names the current version
    list_versions(store, …)              all versions, and what exists of each
    give_up_version(store, …, version)   it will not become current, and may be deleted

A table version has its own manifest and data below ``<namespace>/<table>/v<N>/``. The highest
number under ``_current/`` names the current one; without any it is version 1.

Each object here is created once, under a condition, and never changed, so exactly one process owns
a number for ever. A number is never reused: its claim stays when the version is deleted. A version
is given up as of the last switch known then; a later switch to it, which had passed its seal, voids
that. Foreign objects are refused by name, because a reader that skipped one might show the wrong
version.

Objects that never change are read once per store and process. They are known by path, size and
time, so an object that was deleted and created again is read again. Each listing is new. Any
thread.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from persist.manifest.actions import Why
from persist.manifest.errors import ManifestDamaged, SwitchRefused, TableVersionNotKept
from persist.manifest.paths import (
    claimed_folder,
    current_folder,
    gone_path,
    numbered,
    parse_entry,
    parse_gone,
    parse_number,
    version_folder,
)
from persist.store import AlreadyExists, ObjectInfo, ObjectNotFound, ObjectStore

_T = TypeVar("_T")

MOST_KNOWN = 1 << 16
"""The most objects of a store that are remembered; hourly pushes make 9,000 switches a year."""
_READERS = 8

_lock = threading.Lock()
_known: WeakKeyDictionary[ObjectStore, dict[ObjectInfo, Any]] = WeakKeyDictionary()


def read_once(
    store: ObjectStore, infos: Sequence[ObjectInfo], read: Callable[[ObjectStore, str], _T]
) -> list[_T]:
    """The content of the objects of a listing, in its order.

    Args:
        read: Reads one object; called for those that have not been read, several at a time if they
            are many.

    Raises:
        Exception: From ``read``; nothing of that is remembered.
    """
    with _lock:
        there = _known.get(store, {})
        known = {info: there[info] for info in infos if info in there}
    left = [info for info in infos if info not in known]
    if len(left) > _READERS:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="read-once") as pool:
            values = list(pool.map(lambda info: read(store, info.path), left))
    else:
        values = [read(store, info.path) for info in left]
    new = dict(zip(left, values, strict=True))
    if new:
        with _lock:
            there = _known.setdefault(store, {})
            if len(there) + len(new) > MOST_KNOWN:
                there.clear()
            there.update(new)
    return [new[info] if info in new else known[info] for info in infos]


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ObjectNotFound)


class Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table was switched to ``table_version`` at this time, by the store's clock."""

    table_version: int
    previous: int = 1
    at: str = ""
    push_id: str | None = None
    why: Why = "swap"


class NumberedSwitch(msgspec.Struct, frozen=True):
    """A switch and its number."""

    number: int
    switch: Switch
    written: datetime


class VersionClaim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The push that owns the number of a table version."""

    table_version: int
    push_id: str
    at: str
    incarnation: str = ""


class GivenUpVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table version that will not become current, since when, and why.

    ``switch``: the number of the last switch at that time. A later switch to the version voids it.
    """

    table_version: int
    at: str
    why: str
    switch: int = 0


class TableVersion(msgspec.Struct, frozen=True):
    """One version of a table.

    Attributes:
        claim: None for version 1, and for one that was made manually.
        current: Whether it is current; ``switched_at``: when it became so last.
        committed: Whether it can be read: it has a manifest.
        gone: Set if it was given up or deleted.
    """

    version: int
    current: bool
    committed: bool
    claim: VersionClaim | None = None
    switched_at: str | None = None
    gone: GivenUpVersion | None = None

    @property
    def kept(self) -> bool:
        """Whether it can be read, and may become current again."""
        return self.committed and self.gone is None


def switches(store: ObjectStore, namespace: str, table: str) -> list[NumberedSwitch]:
    """All switches of a table, in order; empty if version 1 was always current.

    Raises:
        ManifestDamaged: An object in the folder is no switch, or cannot be read.
    """
    found: dict[int, ObjectInfo] = {}
    for info in store.list(current_folder(namespace, table)):
        number = parse_number(posixpath.basename(info.path))
        if number is None:
            raise ManifestDamaged(info.path, 0, "", "not a switch to a table version; move it")
        found[number] = info
    read = read_once(store, list(found.values()), read_switch)
    return [
        NumberedSwitch(number, switch, info.at)
        for (number, info), switch in zip(found.items(), read, strict=True)
    ]


def read_switch(store: ObjectStore, path: str) -> Switch:
    """One switch. ``ManifestDamaged`` if it cannot be read or is invalid."""
    try:
        switch = msgspec.json.decode(store.get(path), type=Switch)
    except _UNREADABLE as exc:
        raise ManifestDamaged(path, 0, "", f"it does not name a table version: {exc}") from exc
    if switch.table_version < 1:
        reason = f"{switch.table_version} is no table version"
        raise ManifestDamaged(path, 0, "", reason)
    return switch


def last_switch(store: ObjectStore, namespace: str, table: str) -> tuple[int, Switch]:
    """The last switch and its number; number 0 if there was none.

    Raises:
        ManifestDamaged: As :func:`switches`; older ones are not read.
    """
    number, last = 0, None
    for info in store.list(current_folder(namespace, table)):
        found = parse_number(posixpath.basename(info.path))
        if found is None:
            raise ManifestDamaged(info.path, 0, "", "not a switch to a table version; move it")
        number, last = found, info
    if last is None:
        return 0, Switch(table_version=1)
    return number, read_once(store, [last], read_switch)[0]


def current_version(store: ObjectStore, namespace: str, table: str) -> int:
    """The current table version. ``ManifestDamaged`` as :func:`last_switch`."""
    return last_switch(store, namespace, table)[1].table_version


def claim_version(
    store: ObjectStore, namespace: str, table: str, push_id: str, incarnation: str = ""
) -> int:
    """A number for a new table version; the same push gets the same number again. Blocks.

    Raises:
        ValueError: The push has no id.
        ManifestDamaged: An object in the folder is no claim.
        StoreUnavailable: Try again: no number is lost.
    """
    if not push_id:
        raise ValueError("a push without an id cannot claim a table version")
    folder = claimed_folder(namespace, table)
    claims = _claims(store, folder)
    for claim in claims.values():
        if claim.push_id == push_id:
            return claim.table_version
    known = [*claims, *(each.switch.table_version for each in switches(store, namespace, table))]
    version = max([1, *known, *_made(store, namespace, table, max([1, *known]))]) + 1
    while True:
        claim = VersionClaim(version, push_id, store.now().isoformat(), incarnation)
        try:
            store.create(numbered(folder, version), msgspec.json.encode(claim))
        except AlreadyExists:
            if _read(store, numbered(folder, version), VersionClaim).push_id == push_id:
                return version
            version += 1  # another process was faster
        else:
            return version


def claim_of(store: ObjectStore, namespace: str, table: str, version: int) -> VersionClaim | None:
    """The claim of a table version, which is never deleted; None if it was never claimed.

    Raises:
        ManifestDamaged: It is no claim.
    """
    info = store.exists(numbered(claimed_folder(namespace, table), version))
    if info is None:
        return None
    return read_once(store, [info], partial(_read, kind=VersionClaim))[0]


def give_up_version(
    store: ObjectStore, namespace: str, table: str, version: int, why: str = "given up"
) -> None:
    """Record that a table version will not become current: its push was given up. May be repeated.

    A switch to it that has passed its seal, or that checked before this, still takes effect;
    ``forbid_switch`` rules that out.

    Raises:
        SwitchRefused: It is current.
    """
    number, last = last_switch(store, namespace, table)
    if last.table_version == version:
        raise SwitchRefused(namespace, table, version, "it is current, and cannot be given up")
    if read_gone(store, namespace, table, version) is not None:
        return
    gone = GivenUpVersion(version, store.now().isoformat(), why, number)
    with suppress(AlreadyExists):
        store.create(gone_path(namespace, table, version, number), msgspec.json.encode(gone))


def list_versions(store: ObjectStore, namespace: str, table: str) -> list[TableVersion]:
    """The versions of a table, in order, including those only claimed or deleted.

    Raises:
        ManifestDamaged: An object about them is foreign or cannot be read.
    """
    folder = claimed_folder(namespace, table)
    claims, done = _claims(store, folder), switches(store, namespace, table)
    current = done[-1].switch.table_version if done else 1
    last = {each.switch.table_version: each.switch.at for each in done}
    numbers = {1, *claims, *last, *(each.switch.previous for each in done)}
    numbers |= set(_made(store, namespace, table, max(numbers)))
    committed = {
        version
        for version in range(1, max(numbers) + 1)
        if is_committed(store, namespace, table, version)
    }
    return [
        TableVersion(
            version=version,
            current=version == current,
            committed=version in committed,
            claim=claims.get(version),
            switched_at=last.get(version),
            gone=read_gone(store, namespace, table, version, done),
        )
        for version in sorted(numbers | committed)
    ]


def known_versions(store: ObjectStore, namespace: str, table: str) -> list[int]:
    """The numbers of a table's versions in order: 1, and those that pushes have claimed."""
    names = (posixpath.basename(one.path) for one in store.list(claimed_folder(namespace, table)))
    numbers = {parse_number(name) for name in names}
    return sorted({1} | {number for number in numbers if number is not None})


def unfinished_claims(store: ObjectStore, namespace: str, table: str, beginning: str) -> list[int]:
    """The claimed versions that were never current and were not given up.

    Args:
        beginning: Only of pushes whose ids start with this.

    Raises:
        ManifestDamaged: As :func:`switches`; or an object in the folder is no claim.
    """
    folder = claimed_folder(namespace, table)
    words = (parse_gone(posixpath.basename(info.path)) for info in store.list(folder))
    gone = {word[0] for word in words if word is not None}
    counted = {each.switch.table_version for each in switches(store, namespace, table)}
    return [
        version
        for version, claim in _claims(store, folder).items()
        if claim.push_id.startswith(beginning) and version not in gone | counted
    ]


def may_count(store: ObjectStore, namespace: str, table: str, version: int) -> bool:
    """Whether a table version is current, or was not yet current and was not given up.

    Raises:
        ManifestDamaged: As :func:`switches`.
    """
    done = switches(store, namespace, table)
    current = done[-1].switch.table_version if done else 1
    if version == current:
        return True
    counted = {1} | {each.switch.table_version for each in done}
    return version not in counted and read_gone(store, namespace, table, version, done) is None


def check_kept(store: ObjectStore, namespace: str, table: str, version: int) -> None:
    """Raise ``TableVersionNotKept`` if the table version cannot be read."""
    there = is_committed(store, namespace, table, version)
    if there and read_gone(store, namespace, table, version) is None:
        return
    kept = [each.version for each in list_versions(store, namespace, table) if each.kept]
    raise TableVersionNotKept(namespace, table, version, kept)


def is_committed(store: ObjectStore, namespace: str, table: str, version: int) -> bool:
    """Whether a table version has a manifest with a commit."""
    manifest = f"{version_folder(namespace, table, version)}/_manifest/"
    entries = (parse_entry(info.path) for info in store.list(manifest))
    return any(entry is not None and entry.kind == "commit" for entry in entries)


def read_gone(
    store: ObjectStore,
    namespace: str,
    table: str,
    version: int,
    done: Sequence[NumberedSwitch] | None = None,
) -> GivenUpVersion | None:
    """The record that a table version was given up or deleted; None without a valid one.

    Args:
        done: All switches, if known.
    """
    folder, found = claimed_folder(namespace, table), None
    for info in store.list(folder, numbered(folder, version)):
        named = parse_gone(posixpath.basename(info.path))
        if named is None or named[0] != version:
            break
        found = info.path
    if found is None:
        return None
    gone = _read(store, found, GivenUpVersion)
    done = switches(store, namespace, table) if done is None else done
    later = (each.switch for each in done if each.number > gone.switch)
    return None if any(switch.table_version == version for switch in later) else gone


def _claims(store: ObjectStore, folder: str) -> dict[int, VersionClaim]:
    found: dict[int, ObjectInfo] = {}
    for info in store.list(folder):
        name = posixpath.basename(info.path)
        number = parse_number(name)
        if number is not None:
            found[number] = info
        elif parse_gone(name) is None:
            raise ManifestDamaged(info.path, 0, "", "not a claim of a table version; move it")
    read = read_once(store, list(found.values()), partial(_read, kind=VersionClaim))
    return dict(zip(found, read, strict=True))


def _made(store: ObjectStore, namespace: str, table: str, known: int) -> Sequence[int]:
    """Versions right above the known ones that were made manually, without a claim."""
    version = known
    while is_committed(store, namespace, table, version + 1):
        version += 1
    return range(known + 1, version + 1)


def _read(store: ObjectStore, path: str, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(store.get(path), type=kind)
    except _UNREADABLE as exc:
        raise ManifestDamaged(path, 0, "", f"unexpected content: {exc}") from exc
