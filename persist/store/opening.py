"""Opens the store that a URL names, probes it, and reads the mark that identifies it.

    file:///var/lib/ingester/store   or a plain path, relative to the working directory
    s3://bucket/some/prefix          (s3a:// is the same); options in ``s3.S3Options``
    gs://…, abfs://…, any other      what fsspec knows and ``generic`` accepts

Percent signs in a URL are literal, as in Hadoop.

Some servers accept the header of a conditional create and ignore it. Two writers could then both
own one manifest version, and rows would be lost silently. A start therefore writes one object,
tries to create it again with other content, and expects a refusal with the first content in place.

    _store.json   {"format":1,"id":"…","at":"…"}    created once, conditionally, by the first daemon

By this mark a data directory distinguishes the store from every other. A store without one is new,
older than marks, emptied, or an unmounted mount point; the caller decides which.
"""

from __future__ import annotations

import re
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from persist.store.contract import (
    AlreadyExists,
    ObjectNotFound,
    ObjectStore,
    StoreError,
    StoreUnsuitable,
    checked_path,
)
from persist.store.local import LocalStore

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://)?")


def open_store(url: str, **store_options: Any) -> ObjectStore:
    """The store at ``url``. Nothing is contacted or created yet; ``check_store`` does that.

    Args:
        store_options: for S3 see ``s3.S3Options``; for other file systems those of fsspec; local
            files have none.

    Raises:
        ValueError: the URL or an option is invalid.
        StoreUnsuitable: this kind of store cannot keep a manifest safe.
    """
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else "file"
    rest = url[match.end() :] if match else url
    if "::" in url:
        raise StoreUnsuitable(f"{_shown(url)}: chained file systems are not supported")
    if scheme in ("file", "local"):
        return _local(rest, store_options)
    if scheme in ("s3", "s3a"):
        return _s3(rest, store_options)
    return _generic(url, scheme, store_options)


def _local(rest: str, options: dict[str, Any]) -> ObjectStore:
    if options:
        raise ValueError(f"file:// takes no store options, got {sorted(options)}")
    if rest.startswith("localhost/"):
        rest = rest[len("localhost") :]
    if not rest:
        raise ValueError("file:// needs a folder")
    return LocalStore(Path(rest).expanduser().absolute())


def _s3(rest: str, options: dict[str, Any]) -> ObjectStore:
    from persist.store.s3 import S3Client, S3Options, S3Store  # boto is slow to import

    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    if "@" in bucket:
        raise ValueError("an s3:// URL must not carry credentials: use the options key, secret")
    if not bucket:
        raise ValueError("s3:// needs a bucket")
    if prefix:
        checked_path(prefix)
    return S3Store(bucket, prefix, S3Client(cast(S3Options, options)))


def _generic(url: str, scheme: str, options: dict[str, Any]) -> ObjectStore:
    import fsspec

    from persist.store.generic import FsspecStore

    options = {"use_listings_cache": False, "skip_instance_cache": True, **options}
    try:
        fs, root = fsspec.core.url_to_fs(url, **options)
    except (ImportError, ValueError) as exc:
        raise StoreUnsuitable(f"{_shown(url)}: no file system for {scheme}://: {exc}") from exc
    return FsspecStore(fs, root, _shown(url).rstrip("/"))


def _shown(url: str) -> str:
    """The URL without user, password and query."""
    return re.sub(r"//[^/@]*@", "//", url).partition("?")[0]


FOLDER = "_ingesters/_probe"


def check_store(store: ObjectStore) -> None:
    """Return if the store can do an atomic put and a conditional create.

    It writes below ``_ingesters/_probe/``, and removes that again also on failure.

    Raises:
        StoreUnsuitable: naming the store and what failed.
        StoreUnavailable: the store could not be asked; try again later.
        StoreDenied: these credentials do not permit it.
    """
    path = f"{FOLDER}/{uuid.uuid4().hex}"
    try:
        _check_put(store, f"{path}.put")
        _check_create(store, f"{path}.create")
    finally:
        with suppress(StoreError):  # the checks' result counts, not a failed removal
            store.delete(f"{path}.put")
            store.delete(f"{path}.create")


def _check_put(store: ObjectStore, path: str) -> None:
    for content in (b"first", b"second"):
        store.put(path, content)
        if _content(store, path) != content:
            raise StoreUnsuitable(f"{store.url}: an object reads back differently than it was put")
    listed = [found.path for found in store.list(f"{FOLDER}/")]
    if path not in listed:
        raise StoreUnsuitable(f"{store.url}: a listing lacks an object that was just put")


def _check_create(store: ObjectStore, path: str) -> None:
    store.create(path, b"first")
    try:
        store.create(path, b"second")
    except AlreadyExists:
        if _content(store, path) != b"first":
            raise StoreUnsuitable(
                f"{store.url}: refuses a conditional create of a name that is taken, "
                "but overwrites the object"
            ) from None
    else:
        raise StoreUnsuitable(
            f"{store.url}: ignores the condition of a conditional create (If-None-Match: *), "
            "so that two writers could both own one version of a table; use another store"
        )


def _content(store: ObjectStore, path: str) -> bytes | None:
    try:
        return store.get(path)
    except ObjectNotFound:
        return None


MARK = "_store.json"
FORMAT = 1


class StoreMark(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the mark. ``id`` is a UUID in 32 hexadecimal digits, ``at`` for people."""

    format: int
    id: str
    at: str = ""


def read_mark(store: ObjectStore) -> StoreMark | None:
    """The store's mark, or None.

    Raises:
        StoreUnsuitable: The object is not a mark, or is of a newer version.
        StoreUnavailable: Try again.
    """
    try:
        data = store.get(MARK)
    except ObjectNotFound:
        return None
    try:
        mark = msgspec.json.decode(data, type=StoreMark)
    except msgspec.DecodeError as exc:
        raise StoreUnsuitable(f"{store.url}/{MARK} is damaged: {exc}") from exc
    if mark.format != FORMAT:
        raise StoreUnsuitable(
            f"{store.url}/{MARK} has format {mark.format}, and this version knows {FORMAT}"
        )
    return mark


def ensure_mark(store: ObjectStore) -> StoreMark:
    """The store's mark, created if missing.

    Raises:
        StoreUnsuitable: As for :func:`read_mark`.
        StoreUnavailable: Try again; only one mark is ever created.
    """
    if (found := read_mark(store)) is not None:
        return found
    made = StoreMark(format=FORMAT, id=uuid.uuid4().hex, at=store.now().isoformat())
    try:
        store.create(MARK, msgspec.json.encode(made))
    except AlreadyExists:
        found = read_mark(store)
        if found is None:
            raise StoreUnsuitable(f"{store.url}/{MARK} comes and goes") from None
        return found
    return made
