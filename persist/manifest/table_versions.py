"""Small objects that are created once and never changed, read once for each store of a process.

Law of this file: an object is known by its path, size and time, so that one that somebody has
deleted and made anew is read anew. Each listing is a new one: what is there is never taken from
memory, only what is in it. Any thread.
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
from persist.store import AlreadyExists, NotFound, ObjectInfo, ObjectStore

_T = TypeVar("_T")

MOST_KNOWN = 1 << 16
"""So many objects of a store are remembered; a table of hourly pushes has 9,000 switches a year."""
_READERS = 8

_lock = threading.Lock()
_known: WeakKeyDictionary[ObjectStore, dict[ObjectInfo, Any]] = WeakKeyDictionary()


def read_once(
    store: ObjectStore, infos: Sequence[ObjectInfo], read: Callable[[ObjectStore, str], _T]
) -> list[_T]:
    """Return what is in the objects of a listing, in its order.

    Args:
        read: Reads one, and is called for those that have not been read; several at a time, where
            they are many.

    Raises:
        Exception: What ``read`` raises; nothing of that is remembered.
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


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, NotFound)


class Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table went to ``table_version`` at this time, by the store's clock."""

    table_version: int
    previous: int = 1
    at: str = ""
    push_id: str | None = None
    why: Why = "swap"


class NumberedSwitch(msgspec.Struct, frozen=True):
    """A switch, and its place among all of the table."""

    number: int
    switch: Switch
    written: datetime


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The push that the number of a table version belongs to."""

    table_version: int
    push_id: str
    at: str
    incarnation: str = ""


class Gone(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table version that will not count any more, since when, and why.

    ``switch``: the number of the last switch at that time. It is void where a later one went there.
    """

    table_version: int
    at: str
    why: str
    switch: int = 0


class TableVersion(msgspec.Struct, frozen=True):
    """One version of a table.

    Attributes:
        claim: None for version 1, and for one that was made by hand.
        current: Whether it is the one that counts; ``switched_at``: since when it was so last.
        committed: Whether it can be read: there is a manifest.
        gone: Set where it was given up or deleted.
    """

    version: int
    current: bool
    committed: bool
    claim: Claim | None = None
    switched_at: str | None = None
    gone: Gone | None = None

    @property
    def kept(self) -> bool:
        """Whether it can be read, and may count again."""
        return self.committed and self.gone is None


def switches(store: ObjectStore, namespace: str, table: str) -> list[NumberedSwitch]:
    """All switches of a table, in order; none where version 1 has counted from the start.

    Raises:
        ManifestDamaged: An object there is no switch, or cannot be read.
    """
    found: dict[int, ObjectInfo] = {}
    for info in store.list(current_folder(namespace, table)):
        number = parse_number(posixpath.basename(info.path))
        if number is None:
            raise ManifestDamaged(info.path, 0, "", "it is no switch to a table version; move it")
        found[number] = info
    read = read_once(store, list(found.values()), read_switch)
    return [
        NumberedSwitch(number, switch, info.at)
        for (number, info), switch in zip(found.items(), read, strict=True)
    ]


def read_switch(store: ObjectStore, path: str) -> Switch:
    """One switch. ``ManifestDamaged`` where it cannot be read or makes no sense."""
    try:
        switch = msgspec.json.decode(store.get(path), type=Switch)
    except _UNREADABLE as exc:
        raise ManifestDamaged(path, 0, "", f"it does not name a table version: {exc}") from exc
    if switch.table_version < 1:
        reason = f"{switch.table_version} is no table version"
        raise ManifestDamaged(path, 0, "", reason)
    return switch


def last_switch(store: ObjectStore, namespace: str, table: str) -> tuple[int, Switch]:
    """The number of the last switch, and that switch; number 0 where there was none.

    Raises:
        ManifestDamaged: As :func:`switches`; older ones are not read.
    """
    number, last = 0, None
    for info in store.list(current_folder(namespace, table)):
        found = parse_number(posixpath.basename(info.path))
        if found is None:
            raise ManifestDamaged(info.path, 0, "", "it is no switch to a table version; move it")
        number, last = found, info
    if last is None:
        return 0, Switch(table_version=1)
    return number, read_once(store, [last], read_switch)[0]


def current_version(store: ObjectStore, namespace: str, table: str) -> int:
    """The table version that counts. ``ManifestDamaged`` as :func:`last_switch`."""
    return last_switch(store, namespace, table)[1].table_version


def claim_version(
    store: ObjectStore, namespace: str, table: str, push_id: str, incarnation: str = ""
) -> int:
    """A number for a new table version; the same push gets its own again. Blocks.

    Raises:
        ValueError: The push has no id.
        ManifestDamaged: An object there is no claim.
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
        claim = Claim(version, push_id, store.now().isoformat(), incarnation)
        try:
            store.create(numbered(folder, version), msgspec.json.encode(claim))
        except AlreadyExists:
            if _read(store, numbered(folder, version), Claim).push_id == push_id:
                return version
            version += 1  # somebody was faster, so this ends
        else:
            return version


def claim_of(store: ObjectStore, namespace: str, table: str, version: int) -> Claim | None:
    """Return the claim of a table version, which is never deleted; None where nobody has made one.

    Raises:
        ManifestDamaged: It is no claim.
    """
    info = store.exists(numbered(claimed_folder(namespace, table), version))
    if info is None:
        return None
    return read_once(store, [info], partial(_read, kind=Claim))[0]


def give_up_version(
    store: ObjectStore, namespace: str, table: str, version: int, why: str = "given up"
) -> None:
    """Say that a table version will not count: its push was given up. Twice is fine.

    A switch to it that has passed its seal, or that looked before this, still takes effect:
    ``forbid_switch`` is for who has to know.

    Raises:
        SwitchRefused: It counts.
    """
    number, last = last_switch(store, namespace, table)
    if last.table_version == version:
        raise SwitchRefused(namespace, table, version, "it counts, and cannot be given up")
    if read_gone(store, namespace, table, version) is not None:
        return
    gone = Gone(version, store.now().isoformat(), why, number)
    with suppress(AlreadyExists):
        store.create(gone_path(namespace, table, version, number), msgspec.json.encode(gone))


def list_versions(store: ObjectStore, namespace: str, table: str) -> list[TableVersion]:
    """The versions of a table, also those that are claimed only or deleted, in order.

    Raises:
        ManifestDamaged: An object that says of them is foreign or cannot be read.
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
    """The numbers of a table's versions: 1, and those that pushes have claimed, in order."""
    names = (posixpath.basename(one.path) for one in store.list(claimed_folder(namespace, table)))
    numbers = {parse_number(name) for name in names}
    return sorted({1} | {number for number in numbers if number is not None})


def unfinished_claims(store: ObjectStore, namespace: str, table: str, beginning: str) -> list[int]:
    """The claimed versions that have never counted and were not given up.

    Args:
        beginning: Only of pushes whose ids begin so.

    Raises:
        ManifestDamaged: As :func:`switches`; or an object there is no claim.
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
    """Whether a table version counts, or has not done so yet and was not given up.

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
    """Raise ``TableVersionNotKept`` where there is no such table version to read."""
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
) -> Gone | None:
    """The word that a table version was given up or deleted; None where there is none that holds.

    Args:
        done: All switches, where they are known.
    """
    folder, found = claimed_folder(namespace, table), None
    for info in store.list(folder, numbered(folder, version)):
        named = parse_gone(posixpath.basename(info.path))
        if named is None or named[0] != version:
            break
        found = info.path
    if found is None:
        return None
    gone = _read(store, found, Gone)
    done = switches(store, namespace, table) if done is None else done
    later = (each.switch for each in done if each.number > gone.switch)
    return None if any(switch.table_version == version for switch in later) else gone


def _claims(store: ObjectStore, folder: str) -> dict[int, Claim]:
    found: dict[int, ObjectInfo] = {}
    for info in store.list(folder):
        name = posixpath.basename(info.path)
        number = parse_number(name)
        if number is not None:
            found[number] = info
        elif parse_gone(name) is None:
            raise ManifestDamaged(info.path, 0, "", "it is no claim of a table version; move it")
    read = read_once(store, list(found.values()), partial(_read, kind=Claim))
    return dict(zip(found, read, strict=True))


def _made(store: ObjectStore, namespace: str, table: str, known: int) -> Sequence[int]:
    """Versions right above the known ones that were made without a claim, by hand."""
    version = known
    while is_committed(store, namespace, table, version + 1):
        version += 1
    return range(known + 1, version + 1)


def _read(store: ObjectStore, path: str, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(store.get(path), type=kind)
    except _UNREADABLE as exc:
        raise ManifestDamaged(path, 0, "", f"it does not say what it should: {exc}") from exc
