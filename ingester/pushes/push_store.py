"""Where pushes are kept: objects in one store, each created by one controller alone.

    _pushes/<push id>/<n:020d>            number, controller, token, at, record: the highest counts
    _pushes/<push id>/requests/<n:020d>   kind, reason, at, token: abort, or rollback
    _pushes/<push id>/leader              see ``leading``; no record depends on it

Law of this file: a record is kept by creating the object behind the newest one, so that of two
controllers one is told at its next :meth:`HeldPush.save` that the push is no longer its own
(:class:`Deposed`). Nothing is ever overwritten. Records of pushes that have ended are deleted
(:mod:`ingester.pushes.pruning`), the oldest first, so a controller that was paused for long may
find the number free that it takes for the next one. Therefore a record counts only where none is
higher and the one before it is there, and whoever creates one looks at both afterwards.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Literal, TypeVar

import msgspec

from ingester.pushes.answers import readable
from ingester.pushes.kept_json import decoded
from ingester.pushes.record import PushRecord
from persist.store import AlreadyExists, NotFound, ObjectStore, StoreError, StoreRetry, retry

PUSH_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
FOLDER = "_pushes"
RETRY = StoreRetry(first_s=0.1, cap_s=5.0, for_s=300.0)
"""A store that is away is asked again for so long."""
_NUMBER = re.compile(r"[0-9]{20}")


class PushNotFound(Exception):
    """The store has no push of that id."""


class PushExists(Exception):
    """A push of that id was begun before; it can be resumed."""


class PushDamaged(Exception):
    """An object of a push is not what this module writes; the message names it."""


class Deposed(Exception):
    """Another controller has taken the push over: this one must do nothing more about it."""


class Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One object of a push."""

    number: int
    controller: str
    token: str
    """Differs for each object, so that its writer knows it again when its answer was lost."""
    at: datetime
    record: PushRecord


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Somebody's wish for a push."""

    kind: Literal["abort", "rollback"]
    reason: str
    at: datetime
    token: str


_saved = msgspec.json.Decoder(Saved)
_request = msgspec.json.Decoder(Request)
T = TypeVar("T")


class HeldPush:
    """A push that this controller may act on, until another one takes it over. Not thread-safe."""

    def __init__(self, pushes: PushStore, controller: str, saved: Saved) -> None:
        self._pushes = pushes
        self._controller = controller
        self._saved = saved

    @property
    def record(self) -> PushRecord:
        """The newest record."""
        return self._saved.record

    def save(self, record: PushRecord, now: datetime) -> None:
        """Keep the record that follows; when this returns it survives whatever happens.

        Raises:
            Deposed: another controller has taken the push over, which goes on from its own record.
            StoreUnavailable: whether it was kept is unknown; take the push over again.
        """
        self._saved = self._pushes.keep(self._saved.number + 1, self._controller, record, now)

    def check(self) -> None:
        """Raise :class:`Deposed` if another controller has the push by now, or it is pruned."""
        self._pushes.check_newest(self.record.push_id, self._saved.number)

    def requests(self) -> list[Request]:
        """Return the requests that the record has not taken in."""
        return self._pushes.requests(self.record.push_id)[self.record.requests :]


class PushStore:
    """The pushes in a store; ``policy`` says for how long a store that is away is asked again.

    Every call blocks, and may raise what the store raises.
    """

    def __init__(self, store: ObjectStore, policy: StoreRetry = RETRY) -> None:
        self._store = store
        self._policy = policy

    def begin(self, record: PushRecord, controller: str, now: datetime) -> HeldPush:
        """Keep a new push, and hold it.

        Raises:
            PushExists: there is one of that id.
            ValueError: the id cannot name a push.
        """
        try:
            return HeldPush(self, controller, self.keep(1, controller, record, now))
        except Deposed:
            raise PushExists(f"push {record.push_id} was begun before") from None

    def take_over(self, push_id: str, controller: str, now: datetime) -> HeldPush:
        """Hold a push from now on, so that whoever held it before finds itself deposed.

        Raises:
            PushNotFound: there is none of that id.
        """
        while True:
            newest = self.newest(push_id)
            try:
                kept = self.keep(newest.number + 1, controller, newest.record, now)
            except Deposed:
                continue  # whoever holds it has gone on, so this ends with the push at the latest
            return HeldPush(self, controller, kept)

    def newest(self, push_id: str) -> Saved:
        """Return the newest object of a push.

        Raises:
            PushNotFound: there is none.
            PushDamaged: the newest one cannot be read.
        """
        folder = _folder(push_id)
        numbers = self.numbers(push_id)
        if not numbers or not self._follows(folder, numbers):
            raise PushNotFound(f"{self._store.url} has no push {push_id!r}")
        return self._read(_path(folder, numbers[-1]), _saved)

    def ids(self) -> Iterator[str]:
        """Yield the ids of all pushes, in the order of their names."""
        after = ""
        while True:
            first = next(self._store.list(f"{FOLDER}/", after), None)
            if first is None:
                return
            push_id = first.path.split("/")[1]
            yield push_id
            after = f"{FOLDER}/{push_id}0"  # '0' follows '/'

    def request(
        self, push_id: str, kind: Literal["abort", "rollback"], reason: str, now: datetime
    ) -> int:
        """Ask whoever leads the push to give it up or undo it, and return the request's number.

        Raises:
            PushNotFound: there is none of that id.
        """
        self.newest(push_id)
        wish = Request(kind=kind, reason=readable(reason), at=now, token=uuid.uuid4().hex)
        folder = f"{_folder(push_id)}requests/"
        number = len(self.requests(push_id)) + 1
        while True:
            try:
                self._create(_path(folder, number), msgspec.json.encode(wish))
            except AlreadyExists:
                number += 1  # somebody was faster, so this ends
            else:
                return number

    def requests(self, push_id: str) -> list[Request]:
        """Return all that was asked for the push, oldest first."""
        folder = f"{_folder(push_id)}requests/"
        # A listing may pass by one that is created while it goes on, and have the next one.
        there = [n for place, n in enumerate(self._numbers(folder), 1) if n == place]
        return [self._read(_path(folder, number), _request) for number in there]

    def keep(self, number: int, controller: str, record: PushRecord, now: datetime) -> Saved:
        """Create the object of that number.

        Raises:
            Deposed: another controller has created it, or one above it, or the push is pruned.
        """
        saved = Saved(
            number=number, controller=controller, token=uuid.uuid4().hex, at=now, record=record
        )
        folder = _folder(record.push_id)
        try:
            self._create(_path(folder, number), msgspec.json.encode(saved))
        except AlreadyExists:
            raise Deposed(f"push {record.push_id}: record {number} is another one's") from None
        there = self._numbers(folder, max(number - 2, 0))
        if there[-1:] != [number]:
            raise Deposed(f"push {record.push_id}: there are records above {number}, another one's")
        if not self._follows(folder, there):
            # Nobody counts it; it goes here, or when pushes are pruned the next time.
            with suppress(StoreError):
                self._store.delete(_path(folder, number))
            raise Deposed(f"push {record.push_id} has ended long ago, and its records are gone")
        return saved

    def check_newest(self, push_id: str, number: int) -> None:
        """Raise :class:`Deposed` unless the record of this number is there, and none above it."""
        there = self._numbers(_folder(push_id), number - 1)
        if there != [number]:
            above = "is gone" if not there else f"is followed by {there[-1]}, another one's"
            raise Deposed(f"push {push_id}: record {number} {above}")

    def numbers(self, push_id: str) -> list[int]:
        """Return the numbers of the push's records, in ascending order."""
        return self._numbers(_folder(push_id))

    def _follows(self, folder: str, numbers: Sequence[int]) -> bool:
        """Whether the last record is the first one, or the one before it is there as well."""
        before = numbers[-1] - 1
        if before == 0 or before in numbers:
            return True
        # A listing may pass by what is created while it goes on: looked for by its name.
        path = _path(folder, before)
        return retry(lambda: self._store.exists(path), self._policy) is not None

    def _create(self, path: str, data: bytes) -> None:
        """Create an object; one of the same bytes is this call's own, whose answer was lost."""

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
        except (ValueError, NotFound) as exc:
            raise PushDamaged(f"{self._store.url}/{path}: {exc}") from exc


def _folder(push_id: str) -> str:
    if not PUSH_ID.fullmatch(push_id):
        raise ValueError(f"push id {push_id!r} does not match {PUSH_ID.pattern}")
    return f"{FOLDER}/{push_id}/"


def _path(folder: str, number: int) -> str:
    return f"{folder}{number:020d}"
