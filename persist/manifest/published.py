"""Pins: which versions garbage collection keeps for readers of a published format.

    <namespace>/<table>/_published/iceberg.json       {"table_version": 1, "version": 40}

The newest published version of a format may be older than the versions that the table keeps by
itself, because publishing runs behind the commit. A pin says that the newest published version is
this one or a later one. The publisher writes the pin before its first publication, raises it from
time to time after publications, and removes it when publishing is switched off.

Garbage collection keeps all versions from the lowest pin on, also over switches: all of a table
version that came after a pinned one, and all table versions since then. A pin that cannot be read
stops it for this table.

A first pin may be written while a collection runs that has not seen it. The pin is therefore
written first and the floor read afterwards, and the collection does the reverse: one of the two
sees the other (tests/persist/manifest/test_published.py).
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

import msgspec

from persist.manifest.errors import ManifestDamaged, VersionNotKept
from persist.manifest.lineage import find_head, kept_range, read_floor
from persist.manifest.paths import (
    commit_path,
    parse_pin,
    pin_path,
    published_folder,
    version_folder,
)
from persist.store import ObjectNotFound, ObjectStore


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest published version is ``version`` of table version ``table_version``, or later."""

    table_version: int
    version: int


def read_pins(store: ObjectStore, namespace: str, table: str) -> dict[str, Pin]:
    """The pins of a table by format; empty if it is not published.

    Formats that this release does not know count as well. Other objects of the folder are ignored.

    Raises:
        ManifestDamaged: A pin cannot be read.
    """
    pins = {}
    for info in list(store.list(published_folder(namespace, table))):
        format = parse_pin(posixpath.basename(info.path))
        if format is not None and (pin := _read_pin(store, info.path)) is not None:
            pins[format] = pin
    return pins


def write_pin(store: ObjectStore, namespace: str, table: str, format: str, pin: Pin) -> None:
    """Write the pin of a format, in place of an earlier one. Blocks.

    Before the first publication: write the pin of a version that was read as the head, and check
    afterwards that the pin's table version is current.

    Raises:
        VersionNotKept: A collection that runs, or is over, does not keep the version: pin a newer
            one. The pin is written nevertheless.
        ValueError: Versions begin at 1.
        StoreUnavailable: It may be repeated.
    """
    if pin.table_version < 1 or pin.version < 1:
        raise ValueError(f"{pin} pins nothing: versions begin at 1")
    store.put(pin_path(namespace, table, format), msgspec.json.encode(pin))
    folder = f"{version_folder(namespace, table, pin.table_version)}/_manifest/"
    kept = store.exists(commit_path(folder, pin.version)) is not None
    if not kept or read_floor(store, folder) > pin.version:
        raise VersionNotKept(
            pin.version, *kept_range(store, folder, find_head(store, folder, 0) or 0)
        )


def remove_pin(store: ObjectStore, namespace: str, table: str, format: str) -> None:
    """Remove the pin of a format, if there is one: nothing is kept for its readers. Blocks."""
    store.delete(pin_path(namespace, table, format))


def lowest_pin(pins: Mapping[str, Pin], table_version: int) -> int | None:
    """The lowest version of the current table version that readers may need; None without pins.

    Any version of it may be published if a pin still names another table version.
    """
    versions = (pin.version if pin.table_version == table_version else 1 for pin in pins.values())
    return min(versions, default=None)


def since_pins(pins: Mapping[str, Pin], history: Sequence[int]) -> set[int]:
    """The table versions that were current since a pin was written.

    Args:
        history: the table versions in the order in which they became current.
    """
    found: set[int] = set()
    for pin in pins.values():
        names = [place for place, each in enumerate(history) if each == pin.table_version]
        found |= {pin.table_version, *history[max(names, default=0) :]}
    return found


def _read_pin(store: ObjectStore, path: str) -> Pin | None:
    """One pin; None if it was removed meanwhile."""
    try:
        pin = msgspec.json.decode(store.get(path), type=Pin)
    except ObjectNotFound:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _damaged(path, str(exc)) from exc
    if pin.table_version < 1 or pin.version < 1:
        raise _damaged(path, f"it names version {pin.version} of table version {pin.table_version}")
    return pin


def _damaged(path: str, reason: str) -> ManifestDamaged:
    told = (
        f"it does not say which version is published, so nothing of the table is deleted: {reason}."
        " Publish the table again, or delete this object if the table is no longer published"
    )
    return ManifestDamaged(path, 0, "", told)
