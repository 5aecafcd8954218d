"""The contract of every object store, and its errors by who must act.

- ``put`` and ``create`` are atomic and durable: a reader sees all of an object or none of it, and
  once
  the call returns the object survives a crash of either side.
- ``create`` succeeds for exactly one of any number of callers, and the first content stays.
- A listing is in ascending order of the whole path (by UTF-8 bytes) and shows only complete
  objects.
- Times are by the store's own clock, in UTC; S3 has whole seconds.

Calls block and may come from any thread at once. Paths are relative to the store's URL, parts
joined by '/'; no part is empty, '.' or '..'. All stores pass tests/persist/store/test_contract.py.

    StoreError
      ObjectNotFound      the caller: the object does not exist
      AlreadyExists       the caller: the name is taken, its content is unchanged
      StoreUnavailable    the caller, later: network, time-out, throttling, 5xx
        StoreFull         later, once there is room
      StoreDenied         an operator: credentials or permissions
      StoreUnsuitable     an operator: this store cannot do what a manifest needs

After ``StoreUnavailable`` a write may or may not have happened: read it back. Messages contain the
URL or path and the cause, never a credential.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer  # collections.abc has it from Python 3.12 on


class StoreError(Exception):
    """A store refused or failed; raised itself only for a name that the store cannot hold."""


class ObjectNotFound(StoreError):
    """No object exists at ``path``."""

    def __init__(self, path: str) -> None:
        super().__init__(f"object {path!r} does not exist")
        self.path = path


class AlreadyExists(StoreError):
    """A conditional create found an object at ``path`` and left it unchanged."""

    def __init__(self, path: str) -> None:
        super().__init__(f"object {path!r} already exists")
        self.path = path


class StoreUnavailable(StoreError):
    """The store did not answer, or asked for a pause: try again later."""


class StoreFull(StoreUnavailable):
    """The store has no room left: try again once there is some."""


class StoreDenied(StoreError):
    """These credentials are not permitted to do this."""


class StoreUnsuitable(StoreError):
    """The store, as it is configured, cannot keep a manifest safe."""


class PutInfo(NamedTuple):
    """The size in bytes of the stored object, and its time by the store's clock."""

    bytes: int
    at: datetime


class ObjectInfo(NamedTuple):
    """One object: path relative to the store's URL, size in bytes, last write (UTC)."""

    path: str
    bytes: int
    at: datetime


class ObjectStore(Protocol):
    """A place for objects; the module states what all calls promise.

    Every call may raise ``StoreUnavailable``, ``StoreDenied`` or ``StoreUnsuitable``.
    """

    @property
    def url(self) -> str:
        """The normalised URL, without a trailing '/' and without secrets."""
        ...

    @property
    def listing_seeks(self) -> bool:
        """Whether a listing from any start costs less than looking up about twenty names."""
        ...

    def put(self, path: str, data: Buffer) -> PutInfo:
        """Store ``data``, replacing the object at ``path`` in one step.

        Raises:
            StoreFull: no room.
            StoreUnavailable: it may or may not have happened; repeating it is safe.
        """
        ...

    def create(self, path: str, data: Buffer) -> PutInfo:
        """Store ``data`` only if no object is at ``path``, in one single request.

        Raises:
            AlreadyExists: an object exists and is unchanged. On local files and S3 it is never this
                call's own; file systems that repeat requests themselves cannot promise that.
            StoreUnavailable: it may or may not have happened; read it back before repeating.
        """
        ...

    def get(self, path: str) -> bytes:
        """The whole object; ``ObjectNotFound`` if it does not exist."""
        ...

    def open(self, path: str) -> pa.NativeFile:
        """A read-only random access file that fetches only what is read, and a little ahead.

        Local files and S3 read one version of the object, even if the path is overwritten meanwhile
        (if that version is gone, reading raises ``StoreUnavailable``). Other file systems cannot
        tell, so open only objects that are never overwritten there. The caller closes it.

        Raises:
            ObjectNotFound: the object does not exist.
        """
        ...

    def exists(self, path: str) -> ObjectInfo | None:
        """The object's size and time, or ``None``."""
        ...

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """All objects below the folder ``prefix``, at any depth, in ascending order of path.

        Args:
            prefix: a folder with its final '/', or "" for the whole store. A missing folder is
                empty.
            start_after: a path from the store's root, existing or not; only greater ones are
                listed.
        """
        ...

    def delete(self, path: str) -> None:
        """Remove the object; no error if it does not exist.

        On local files a deleted object may reappear after a power loss.
        """
        ...

    def now(self) -> datetime:
        """The time by the store's clock (UTC), comparable with the times of objects."""
        ...


def checked_path(path: str) -> str:
    """``path`` itself if it can name an object.

    Raises:
        ValueError: it is empty, absolute, or has an empty, '.' or '..' part or a NUL.
    """
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{path!r} cannot name an object")
    return path


def checked_prefix(prefix: str) -> str:
    """``prefix`` itself if it is a folder to list: "" or parts that each end with '/'.

    Raises:
        ValueError: it is neither.
    """
    if prefix:
        if not prefix.endswith("/"):
            raise ValueError(f"{prefix!r} is not a folder: it must end with '/'")
        checked_path(prefix[:-1])
    return prefix
