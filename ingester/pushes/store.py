"""The storage of pushes: objects in one store, each created by one controller only.

    _pushes/<push id>/<n:020d>            number, controller, token, at, record; the highest counts
    _pushes/<push id>/requests/<n:020d>   kind, reason, at, token: abort, rollback or release
    _pushes/<push id>/leader              see ``leading``; no record depends on it
    _pushes/<push id>/data                see ``spark.job``: the files that were written
    _pushes/<push id>/left/<region>       see ``cleaning``: what a failed region gave up later

A record is saved by creating the object after the newest one. Of two controllers, the slower one
thus learns at its next :meth:`HeldPush.save` that it is :class:`Deposed`. Nothing is ever
overwritten. Records of pushes that have ended are deleted (:mod:`ingester.pushes.cleaning`), oldest
first, so a controller that was paused for long may find the next number free. Therefore a record is
valid only if none is higher and its predecessor exists, and its creator checks both afterwards
(tests/pushes/test_store).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from ingester.pushes.hooks import readable
from ingester.pushes.record import PushRecord, RequestKind, decoded
from persist.store import (
    AlreadyExists,
    ObjectInfo,
    ObjectNotFound,
    ObjectStore,
    StoreError,
    StoreRetry,
    retry,
)

PUSH_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
FOLDER = "_pushes"
LEADER = "leader"
LEFT = "left"
RETRY = StoreRetry(first_s=0.1, cap_s=5.0, for_s=300.0)
_NUMBER = re.compile(r"[0-9]{20}")
_NUMBERED = re.compile(r"(requests/)?([0-9]{20})")


class PushNotFound(Exception):
    """The store has no push with that id."""


class PushExists(Exception):
    """A push with that id exists; it can be resumed."""


class PushDamaged(Exception):
    """An object of a push cannot be decoded; the message names it."""


class Deposed(Exception):
    """Another controller has taken the push over: this one must stop acting on it."""


class SavedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One record of a push with its number."""

    number: int
    controller: str
    token: str
    """Unique to each object, so that its writer recognizes it after a lost answer."""
    at: datetime
    record: PushRecord


class PushRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request to end or release a push."""

    kind: RequestKind
    reason: str
    at: datetime
    token: str


_saved = msgspec.json.Decoder(SavedRecord)
_request = msgspec.json.Decoder(PushRequest)
T = TypeVar("T")


class HeldPush:
    """A push that this controller may act on until another one takes it over. Not thread-safe."""

    def __init__(self, pushes: PushStore, controller: str, saved: SavedRecord) -> None:
        self._pushes = pushes
        self._controller = controller
        self._saved = saved

    @property
    def record(self) -> PushRecord:
        """The newest record."""
        return self._saved.record

    def save(self, record: PushRecord, now: datetime) -> None:
        """Save the next record; it is durable when this returns.

        Raises:
            Deposed: another controller has taken the push over.
            StoreUnavailable: whether it was saved is unknown; take the push over again.
        """
        self._saved = self._pushes.save(self._saved.number + 1, self._controller, record, now)

    def check(self) -> None:
        """Raise :class:`Deposed` if another controller has the push, or it was pruned."""
        self._pushes.check_newest(self.record.push_id, self._saved.number)

    def requests(self) -> list[PushRequest]:
        """Return the requests that the record has not processed."""
        return self._pushes.requests(self.record.push_id)[self.record.requests :]


class PushStore:
    """The pushes in a store; ``policy`` says how long an unreachable store is retried.

    Every call blocks, and may raise what the store raises.
    """

    def __init__(self, store: ObjectStore, policy: StoreRetry = RETRY) -> None:
        self._store = store
        self._policy = policy

    def begin(self, record: PushRecord, controller: str, now: datetime) -> HeldPush:
        """Save a new push, and hold it.

        Raises:
            PushExists: there is a push with that id.
            ValueError: the id is not valid.
        """
        try:
            return HeldPush(self, controller, self.save(1, controller, record, now))
        except Deposed:
            raise PushExists(f"push {record.push_id} was begun before") from None

    def take_over(self, push_id: str, controller: str, now: datetime) -> HeldPush:
        """Hold a push, so that its former controller is deposed.

        Raises:
            PushNotFound: there is no push with that id.
        """
        while True:
            newest = self.newest(push_id)
            try:
                saved = self.save(newest.number + 1, controller, newest.record, now)
            except Deposed:
                continue  # its controller was faster; this ends with the push at the latest
            return HeldPush(self, controller, saved)

    def newest(self, push_id: str) -> SavedRecord:
        """Return the newest record of a push.

        Raises:
            PushNotFound: there is none.
            PushDamaged: the newest one cannot be decoded.
        """
        folder = _folder(push_id)
        numbers = self.numbers(push_id)
        if not numbers or not self._follows(folder, numbers):
            raise PushNotFound(f"{self._store.url} has no push {push_id!r}")
        return self._read(_path(folder, numbers[-1]), _saved)

    def request(self, push_id: str, kind: RequestKind, reason: str, now: datetime) -> int:
        """Ask the push's leader to abort, roll back or release it; return the request's number.

        Raises:
            PushNotFound: there is no push with that id.
        """
        self.newest(push_id)
        request = PushRequest(kind=kind, reason=readable(reason), at=now, token=uuid.uuid4().hex)
        folder = f"{_folder(push_id)}requests/"
        number = len(self.requests(push_id)) + 1
        while True:
            try:
                self._create(_path(folder, number), msgspec.json.encode(request))
            except AlreadyExists:
                number += 1  # another request was faster, so this ends
            else:
                return number

    def requests(self, push_id: str) -> list[PushRequest]:
        """Return all requests for the push, oldest first."""
        folder = f"{_folder(push_id)}requests/"
        # A listing may miss a request created meanwhile and still have the one after it.
        complete = [n for place, n in enumerate(self._numbers(folder), 1) if n == place]
        return [self._read(_path(folder, number), _request) for number in complete]

    def save(self, number: int, controller: str, record: PushRecord, now: datetime) -> SavedRecord:
        """Create the record with that number.

        Raises:
            Deposed: another controller has created it, or a later one, or the push was pruned.
        """
        saved = SavedRecord(
            number=number, controller=controller, token=uuid.uuid4().hex, at=now, record=record
        )
        folder = _folder(record.push_id)
        try:
            self._create(_path(folder, number), msgspec.json.encode(saved))
        except AlreadyExists:
            raise Deposed(
                f"push {record.push_id}: record {number} is another controller's"
            ) from None
        found = self._numbers(folder, max(number - 2, 0))
        if found[-1:] != [number]:
            raise Deposed(
                f"push {record.push_id}: another controller has saved records after {number}"
            )
        if not self._follows(folder, found):
            # The record is not valid; it is deleted here, or at the next pruning.
            with suppress(StoreError):
                self._store.delete(_path(folder, number))
            raise Deposed(f"push {record.push_id} ended long ago, and its records are deleted")
        return saved

    def check_newest(self, push_id: str, number: int) -> None:
        """Raise :class:`Deposed` unless the record with this number is the newest one."""
        found = self._numbers(_folder(push_id), number - 1)
        if found != [number]:
            why = "is deleted" if not found else f"is followed by {found[-1]}, another controller's"
            raise Deposed(f"push {push_id}: record {number} {why}")

    def numbers(self, push_id: str) -> list[int]:
        """Return the numbers of the push's records, in ascending order."""
        return self._numbers(_folder(push_id))

    def _follows(self, folder: str, numbers: Sequence[int]) -> bool:
        """Whether the last record is the first one, or its predecessor exists."""
        before = numbers[-1] - 1
        if before == 0 or before in numbers:
            return True
        # A listing may miss what is created meanwhile: look it up by name.
        path = _path(folder, before)
        return retry(lambda: self._store.exists(path), self._policy) is not None

    def _create(self, path: str, data: bytes) -> None:
        """Create an object; one with the same bytes is this call's own, whose answer was lost."""

        def attempt() -> None:
            try:
                self._store.create(path, data)
            except AlreadyExists:
                if self._store.get(path) != data:
                    raise

        retry(attempt, self._policy)

    def _numbers(self, folder: str, after: int = 0) -> list[int]:
        def listed() -> list[str]:
            paths = self._store.list(folder, _path(folder, after))
            return [info.path.removeprefix(folder) for info in paths]

        names = retry(listed, self._policy)
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    def _read(self, path: str, decoder: msgspec.json.Decoder[T]) -> T:
        try:
            return decoded(decoder, retry(lambda: self._store.get(path), self._policy))
        except (ValueError, ObjectNotFound) as exc:
            raise PushDamaged(f"{self._store.url}/{path}: {exc}") from exc


def _folder(push_id: str) -> str:
    if not PUSH_ID.fullmatch(push_id):
        raise ValueError(f"push id {push_id!r} does not match {PUSH_ID.pattern}")
    return f"{FOLDER}/{push_id}/"


def _path(folder: str, number: int) -> str:
    return f"{folder}{number:020d}"


class PushFolder(msgspec.Struct, kw_only=True):
    """The objects of one push, from a listing: names and the store's times only."""

    push_id: str
    paths: list[str] = []
    """All objects in ascending order: the records first."""
    numbers: list[int] = []
    """The numbers of its records, in ascending order."""
    requests: int = 0
    """The number of requests."""
    record_at: datetime | None = None
    """The time of the highest record."""
    leader_at: datetime | None = None
    """The leader's last heartbeat."""
    left: set[str] = set()
    """The regions whose leftovers were given up after the end of the push."""

    @property
    def highest(self) -> int:
        """The number of the newest record; 0 if there is none."""
        return self.numbers[-1] if self.numbers else 0

    def abandoned(self, now: datetime, after: timedelta) -> bool:
        """Return whether the last heartbeat is older than ``after``; ``now`` is the store's."""
        beat_at = self.leader_at
        if beat_at is None and self.highest == 1:
            beat_at = self.record_at  # its first leader may not have sent a heartbeat yet
        return beat_at is None or now - beat_at > after


def push_folders(store: ObjectStore) -> list[PushFolder]:
    """Return the folders of all pushes, sorted by id.

    A listing is not a snapshot: objects created meanwhile may be missing.

    Raises:
        StoreError: the store cannot be listed.
    """
    return folders_of(store.list(f"{FOLDER}/"))


def folders_of(objects: Iterable[ObjectInfo]) -> list[PushFolder]:
    """Return the folders of the pushes in a listing."""
    found: dict[str, PushFolder] = {}
    for info in objects:
        push_id, _, inside = info.path.removeprefix(f"{FOLDER}/").partition("/")
        if not PUSH_ID.fullmatch(push_id) or not inside:
            continue
        folder = found.setdefault(push_id, PushFolder(push_id=push_id))
        folder.paths.append(info.path)
        numbered = _NUMBERED.fullmatch(inside)
        if inside == LEADER:
            folder.leader_at = info.at
        elif inside.startswith(f"{LEFT}/"):
            folder.left.add(inside.removeprefix(f"{LEFT}/"))
        elif numbered and numbered[1]:
            folder.requests += 1
        elif numbered:
            folder.numbers.append(int(numbered[2]))
            folder.record_at = info.at
    return list(found.values())
