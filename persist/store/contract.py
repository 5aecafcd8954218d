"""The errors of a store, sorted by who has to act.

    StoreError
      NotFound            the caller: there is no such object
      AlreadyExists       the caller: the name is taken, its content is untouched
      StoreUnavailable    the caller, later: network, time-out, throttling, 5xx
        StoreFull         later, once there is room
      StoreDenied         an operator: credentials or permissions
      StoreUnsuitable     an operator: this store cannot do what a manifest needs

After ``StoreUnavailable`` from a write nobody knows whether it happened: read it back.
Messages carry the URL or path and the cause, never a credential.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer  # collections.abc has it from Python 3.12 on


class StoreError(Exception):
    """A store refused or failed; this class itself is raised for a name it cannot hold."""


class NotFound(StoreError):
    """There is no object at ``path``."""

    def __init__(self, path: str) -> None:
        super().__init__(f"no object {path!r}")
        self.path = path


class AlreadyExists(StoreError):
    """A conditional create met an object at ``path`` and left it as it was."""

    def __init__(self, path: str) -> None:
        super().__init__(f"object {path!r} exists already")
        self.path = path


class StoreUnavailable(StoreError):
    """The store did not answer, or asked to be left alone for now: try again later."""


class StoreFull(StoreUnavailable):
    """The store has no room left: try again once there is some."""


class StoreDenied(StoreError):
    """The store does not let these credentials do this."""


class StoreUnsuitable(StoreError):
    """The store, as it is set up, cannot keep a manifest safe."""


class PutInfo(NamedTuple):
    """The size in bytes of what was stored, and its time by the store's clock."""

    bytes: int
    at: datetime


class ObjectInfo(NamedTuple):
    """One object: path relative to the store's URL, size in bytes, last written at (UTC)."""

    path: str
    bytes: int
    at: datetime


class ObjectStore(Protocol):
    """A place for objects; see the module for what all of its calls promise.

    Every call may raise ``StoreUnavailable``, ``StoreDenied`` or ``StoreUnsuitable``.
    """

    @property
    def url(self) -> str:
        """The store's normalised URL, without a trailing '/' and without secrets."""
        ...

    @property
    def listing_seeks(self) -> bool:
        """Whether a listing costs less than looks at some twenty names, wherever it starts."""
        ...

    def put(self, path: str, data: Buffer) -> PutInfo:
        """Store ``data``, replacing what was at ``path`` in one step.

        Raises:
            StoreFull: no room.
            StoreUnavailable: it may or may not have happened; repeating it is safe.
        """
        ...

    def create(self, path: str, data: Buffer) -> PutInfo:
        """Store ``data`` only if nothing is at ``path``, in one single request.

        Raises:
            AlreadyExists: an object is there, untouched. On local files and S3 it is not this
                call's own; file systems that repeat requests by themselves cannot promise that.
            StoreUnavailable: it may or may not have happened; read it back before repeating.
        """
        ...

    def get(self, path: str) -> bytes:
        """The whole object. ``NotFound`` when there is none."""
        ...

    def open(self, path: str) -> pa.NativeFile:
        """A read-only random access file that fetches only what is read (and a little ahead).

        Local files and S3 read one version of the object, also when the path is overwritten
        meanwhile (where that version is gone, reading raises ``StoreUnavailable``); other file
        systems cannot tell, so open there only what is never overwritten. The caller closes it.

        Raises:
            NotFound: there is no such object.
        """
        ...

    def exists(self, path: str) -> ObjectInfo | None:
        """The object's size and time, or ``None`` when there is none."""
        ...

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """All objects below the folder ``prefix``, at any depth, in ascending order of path.

        Args:
            prefix: a folder with its final '/', or "" for the whole store. One that does not
                exist is empty.
            start_after: a path from the store's root, there or not: only greater ones are listed.
        """
        ...

    def delete(self, path: str) -> None:
        """Remove the object; when there is none, that is fine too.

        On local files a deleted object may come back after a power loss.
        """
        ...

    def now(self) -> datetime:
        """The time by the store's clock (UTC), to be compared with the times of objects."""
        ...


def checked_path(path: str) -> str:
    """``path`` itself when it can name an object.

    Raises:
        ValueError: it is empty, absolute, or has an empty, '.' or '..' part or a NUL.
    """
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{path!r} cannot name an object")
    return path


def checked_prefix(prefix: str) -> str:
    """``prefix`` itself when it is a folder to list: "" or parts that each end with '/'.

    Raises:
        ValueError: it is neither.
    """
    if prefix:
        if not prefix.endswith("/"):
            raise ValueError(f"{prefix!r} is no folder: it has to end with '/'")
        checked_path(prefix[:-1])
    return prefix
