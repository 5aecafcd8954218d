"""Follows a table's manifest and publishes its versions in each format.

    head of a format ──▶ manifest versions after it, one step each ──▶ ``Format.publish``
    no head, or its history is not kept ──▶ one complete step

A publisher may stop anywhere, and any number of them may run: each format decides with one
conditional create which version follows its head, and a publisher that lost continues from the new
head. The formats do not wait for each other (tests/persist/publish/test_crash_points.py).

A pin in ``_published`` keeps garbage collection from deleting files that the published head lists,
however far it is behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import msgspec

from persist.manifest import (
    Add,
    CommittedVersion,
    Imported,
    Manifest,
    ManifestDamaged,
    ManifestError,
    Pin,
    Remove,
    TableNotFound,
    TableState,
    VersionNotKept,
    apply,
    read_pins,
    remove_pin,
    write_pin,
)
from persist.manifest.actions import parse_time
from persist.publish.delta import DeltaTable
from persist.publish.format import Format, FormatName, Head
from persist.publish.iceberg import IcebergTable
from persist.publish.numbering import Numbering, arrival, period
from persist.publish.steps import (
    ForeignCommit,
    NotPublishable,
    OpenFile,
    Overtaken,
    Place,
    Step,
)
from persist.store import ObjectStore, StoreError
from persist.switching import load_current
from persist.table import TableDefinition, TableKey

AT_ONCE = 256
"""Steps given to a format at once: a publisher far behind holds no more changes than this."""
ATTEMPTS = 5
"""How often publishing continues from another publisher's head before it waits for the next call.
"""
PIN_EVERY_S = 60.0
_NOT_KEPT = (TableNotFound, VersionNotKept, ManifestDamaged)


class FormatStatus(msgspec.Struct, frozen=True):
    """How far a table is published in one format.

    Attributes:
        head: the newest published version; None if there is none, or it could not be read.
        versions_behind: manifest versions that are not published; 0 if up to date.
        seconds_behind: the age of the oldest of them.
        refused: why it is not published until somebody changes something; None if it is.
        error: why it failed this time; the next call may succeed.
    """

    format: FormatName
    head: Head | None
    versions_behind: int = 0
    seconds_behind: float = 0.0
    refused: str | None = None
    error: str | None = None


@dataclass(slots=True)
class _Follower:
    """One format, and where it stands as far as is known."""

    format: Format
    head: Head | None = None
    state: TableState | None = None
    """The table at the head; None if it was not loaded."""
    is_read: bool = False
    pinned: Pin | None = None
    pinned_at: float = 0.0

    def read_head(self) -> Head | None:
        if not self.is_read:
            self.head, self.state = self.format.head(), None
            self.is_read = True
        return self.head

    def forget(self) -> None:
        self.is_read = False


class Publisher:
    """Publishes one table. Blocks; used by one thread at a time.

    Keeps what it knows of the published metadata, so that a version costs a few small writes.
    """

    def __init__(self, store: ObjectStore, namespace: str, table: str) -> None:
        self.key: TableKey = (namespace, table)
        self._store = store
        self._numbering = Numbering(store, namespace, table)
        self._followers: dict[FormatName, _Follower] = {
            "iceberg": _Follower(IcebergTable(store, namespace, table)),
            "delta": _Follower(DeltaTable(store, namespace, table)),
        }
        self._defined: tuple[object, TableDefinition] | None = None

    def unsupported(self, name: FormatName, definition: TableDefinition) -> tuple[str, ...]:
        """Why a format cannot express a table, one sentence per column; empty if it can."""
        return self._followers[name].format.unsupported(definition)

    def publish(
        self,
        formats: Collection[FormatName],
        *,
        retain_s: float,
        upto: TableState | None = None,
    ) -> list[FormatStatus]:
        """Publish the table's versions up to the newest one in each format.

        Args:
            retain_s: as :meth:`Format.publish`.
            upto: a state of the current table version that is known to be the newest.

        Returns:
            One status for each format; a failure of one does not hinder the other.

        Raises:
            TableNotFound: the table does not exist.
            ManifestError, StoreError: its manifest cannot be read.
        """
        newest = load_current(self._store, *self.key) if upto is None else upto
        return [self._published(self._followers[name], newest, retain_s) for name in formats]

    def status(
        self, formats: Collection[FormatName], upto: TableState | None = None
    ) -> list[FormatStatus]:
        """How far the table is published; reads only. Arguments and errors as :meth:`publish`."""
        newest = load_current(self._store, *self.key) if upto is None else upto
        found = []
        for name in formats:
            one = self._followers[name]
            one.forget()
            look = partial(self._checked_head, one, newest)
            found.append(self._attempted(one, newest, look))
        return found

    def clean_up(self, formats: Collection[FormatName], *, retain_s: float, grace_s: float) -> int:
        """Delete metadata that no kept version needs; the number of deleted objects.

        Pins are raised to the published heads, so that the next garbage collection deletes what
        only earlier ones need, also of a table that nobody writes to any more.

        Raises:
            StoreError: what is deleted stays deleted; run it again.
        """
        pins, deleted = read_pins(self._store, *self.key), 0
        for one in [self._followers[name] for name in formats]:
            with suppress(ForeignCommit):  # publishing says so
                # A format that was switched off keeps its metadata, and has no pin.
                if one.format.name in pins and (head := one.format.head()) is not None:
                    one.pinned = pins[one.format.name]
                    with suppress(VersionNotKept):  # it is lower than all that is kept
                        self._pin(one, head.place)
                deleted += one.format.clean_up(retain_s=retain_s, grace_s=grace_s)
        return deleted

    def switch_off(self, name: FormatName) -> None:
        """Let garbage collection delete files of published versions once they are old.

        What is published stays as it is. Raises ``StoreError``.
        """
        remove_pin(self._store, *self.key, name)
        self._followers[name].pinned = None

    def _published(self, one: _Follower, newest: TableState, retain_s: float) -> FormatStatus:
        def attempt() -> None:
            for _ in range(ATTEMPTS - 1):
                with suppress(Overtaken):
                    return self._catch_up(one, newest, retain_s)
                one.forget()
            return self._catch_up(one, newest, retain_s)

        return self._attempted(one, newest, attempt)

    def _attempted(
        self, one: _Follower, newest: TableState, attempt: Callable[[], object]
    ) -> FormatStatus:
        refused = error = None
        try:
            attempt()
        except (NotPublishable, ForeignCommit) as exc:
            refused = str(exc)
            one.forget()
        except (StoreError, ManifestError) as exc:
            error = str(exc)
            one.forget()
        except Overtaken:
            error = "other publishers of the table were faster"
            one.forget()
        behind, seconds = 0, 0.0
        try:
            behind, seconds = self._behind(one.head, newest)
        except (StoreError, ManifestError) as exc:
            error = error or str(exc)
        return FormatStatus(one.format.name, one.head, behind, seconds, refused, error)

    def _behind(self, head: Head | None, newest: TableState) -> tuple[int, float]:
        """The versions after the head, and the age of the oldest of them in seconds."""
        place = self._place(newest)
        behind = place.number if head is None else max(0, place.number - head.place.number)
        if not behind:
            return 0, 0.0
        first = newest.version
        if head is not None and head.place.number - head.place.version == _offset(place):
            first = head.place.version + 1
        try:
            at_ms = self._committed_ms(self._manifest(newest.table_version), first)
        except _NOT_KEPT:
            at_ms = head.at_ms if head is not None else 0
        return behind, max(0.0, self._store.now().timestamp() - at_ms / 1000)

    def _catch_up(self, one: _Follower, newest: TableState, retain_s: float) -> None:
        """Publish what follows the head, up to ``newest``.

        Raises:
            Overtaken: another publisher was faster.
        """
        head, place = self._checked_head(one, newest), self._place(newest)
        if head is not None and head.place.number >= place.number:
            self._check_same(one.format.name, head, place)
            one.format.publish((), retain_s=retain_s)
        elif head is None:
            self._pin(one, place)
            self._give(one, iter([self._complete(newest, place)]), retain_s)
        else:
            try:
                self._give(one, self._steps(one, head, newest, place), retain_s)
            except _NOT_KEPT:
                self._give(one, iter([self._complete(newest, place)]), retain_s)
        self._raise_pin(one)

    def _checked_head(self, one: _Follower, newest: TableState) -> Head | None:
        """The head, if the format can express the table."""
        head = one.read_head()
        if reasons := one.format.unsupported(self._definition(newest)):
            raise NotPublishable(one.format.name, self.key, reasons)
        return head

    def _give(self, one: _Follower, steps: Iterator[Step], retain_s: float) -> None:
        while some := list(islice(steps, AT_ONCE)):
            one.head = one.format.publish(some, retain_s=retain_s)
            one.state = some[-1].state

    def _check_same(self, name: FormatName, head: Head, place: Place) -> None:
        if head.place.number == place.number and head.place.uid != place.uid:
            raise self._another_table(name, head)

    def _another_table(self, name: FormatName, head: Head) -> ForeignCommit:
        told = (
            f"was published from another table of this name, or from a manifest that is gone: it"
            f" names manifest version {head.place.version} with uid {head.place.uid}; move the"
            " published metadata away, and publishing starts over"
        )
        return ForeignCommit(name, self.key, head.location, told)

    def _steps(
        self, one: _Follower, head: Head, newest: TableState, place: Place
    ) -> Iterator[Step]:
        """The versions after the head. Raises one of ``_NOT_KEPT`` if they are not all known."""
        at = head.place
        state = one.state if one.state is not None else self._state_at(one.format.name, head)
        if period(state) == period(newest) and _offset(at) == _offset(place):
            yield from self._changes(state, newest.version, at.number)
            return
        came = arrival(newest)
        if (
            came is None
            or came.table_version != at.table_version
            or period(newest) != period(state) + 1
            or at.number + came.manifest_version - at.version + 1 != _offset(place) + came.into
        ):
            raise VersionNotKept(at.version, newest.version, newest.version)
        for step in self._changes(state, came.manifest_version, at.number):
            state, at = step.state, step.place
            yield step
        switched = self._switched(state, came, newest, at.number + 1)
        yield switched
        yield from self._changes(switched.state, newest.version, switched.place.number)

    def _state_at(self, name: FormatName, head: Head) -> TableState:
        state = self._manifest(head.place.table_version).load(head.place.version)
        if state.uid != head.place.uid:
            raise self._another_table(name, head)
        return state

    def _changes(self, state: TableState, last: int, number: int) -> Iterator[Step]:
        """The steps after ``state``, which has ``number``, to the version ``last``."""
        manifest = self._manifest(state.table_version)
        while state.version < last:
            upto = min(state.version + AT_ONCE, last)
            for version in manifest.changes(state.version, upto):
                number += 1
                step = self._step(state, version, number)
                state = step.state
                yield step

    def _step(self, before: TableState, version: CommittedVersion, number: int) -> Step:
        after = apply(before, version.actions)
        after = replace(after, version=version.version, uid=version.uid, lineage=())
        root = f"v{before.table_version}"
        adds = [action for action in version.actions if isinstance(action, Add)]
        removes = [action for action in version.actions if isinstance(action, Remove)]
        return Step(
            Place(number, before.table_version, version.version, version.uid),
            _milliseconds(version.at),
            tuple(OpenFile(f"{root}/{add.path}", add) for add in adds),
            tuple(OpenFile(f"{root}/{one.path}", before.files[one.path]) for one in removes),
            bool(removes)
            and all(one.reason == "compaction" for one in removes)
            and all(add.kind == "rewrite" for add in adds),
            after,
            self._definition(after),
        )

    def _switched(self, old: TableState, came: Imported, newest: TableState, number: int) -> Step:
        """The step from the sealed state of one table version to the next table version."""
        manifest = self._manifest(newest.table_version)
        state = manifest.load(came.into)
        return Step(
            Place(number, state.table_version, state.version, state.uid),
            self._committed_ms(manifest, state.version),
            tuple(_files(state)),
            tuple(_files(old)),
            False,
            state,
            self._definition(state),
        )

    def _complete(self, state: TableState, place: Place) -> Step:
        at_ms = self._committed_ms(self._manifest(state.table_version), state.version)
        files = tuple(_files(state))
        return Step(place, at_ms, files, (), False, state, self._definition(state), complete=True)

    def _committed_ms(self, manifest: Manifest, version: int) -> int:
        return _milliseconds(manifest.changes(version - 1, version)[0].at)

    def _definition(self, state: TableState) -> TableDefinition:
        """The state's definition, made again only if it changed."""
        made_of = (state.current_schema, state.current_spec, state.properties, state.specs)
        if self._defined is None or self._defined[0] != made_of:
            self._defined = (made_of, TableDefinition.of_state(state))
        return self._defined[1]

    def _place(self, state: TableState) -> Place:
        return self._numbering.place(state, self._highest)

    def _highest(self) -> int:
        heads = [one.read_head() for one in self._followers.values()]
        return max((head.place.number for head in heads if head is not None), default=0)

    def _manifest(self, table_version: int) -> Manifest:
        return Manifest(self._store, *self.key, table_version)

    def _pin(self, one: _Follower, place: Place) -> None:
        pin = Pin(place.table_version, place.version)
        if pin == one.pinned:
            return
        write_pin(self._store, *self.key, one.format.name, pin)
        one.pinned, one.pinned_at = pin, time.monotonic()

    def _raise_pin(self, one: _Follower) -> None:
        """Move the pin to the head now and then; a pin that is too low only keeps more."""
        assert one.head is not None
        place, pinned = one.head.place, one.pinned
        due = time.monotonic() - one.pinned_at > PIN_EVERY_S
        if pinned is None or pinned.table_version != place.table_version or due:
            self._pin(one, place)


def _files(state: TableState) -> Iterator[OpenFile]:
    root = f"v{state.table_version}"
    return (OpenFile(f"{root}/{path}", add) for path, add in state.files.items())


def _offset(place: Place) -> int:
    return place.number - place.version


def _milliseconds(at: str) -> int:
    moment = parse_time(at)
    return 0 if moment is None else round(moment.timestamp() * 1000)
