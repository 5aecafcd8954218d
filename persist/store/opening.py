"""Opening the store that a URL names.

    file:///var/lib/ingester/store   or a plain path; relative ones start at the working directory
    s3://bucket/some/prefix          (s3a:// is the same); options in ``s3_client.S3Options``
    gs://…, abfs://…, any other      whatever fsspec knows and ``generic`` lets pass

Percent signs in a URL are taken literally, as Hadoop takes them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from persist.store.contract import ObjectStore, checked_path
from persist.store.errors import StoreUnsuitable
from persist.store.local import LocalStore

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://)?")


def open_store(url: str, **storage_options: Any) -> ObjectStore:
    """The store at ``url``. Nothing is contacted or created yet: ``check_store`` does that.

    Args:
        storage_options: for S3 see ``s3_client.S3Options``; for other file systems what fsspec
            takes; local files take none.

    Raises:
        ValueError: the URL or an option cannot be understood.
        StoreUnsuitable: this kind of store cannot keep a manifest safe.
    """
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else "file"
    rest = url[match.end() :] if match else url
    if "::" in url:
        raise StoreUnsuitable(f"{_shown(url)}: chained file systems are not supported")
    if scheme in ("file", "local"):
        return _local(rest, storage_options)
    if scheme in ("s3", "s3a"):
        return _s3(rest, storage_options)
    return _generic(url, scheme, storage_options)


def _local(rest: str, options: dict[str, Any]) -> ObjectStore:
    if options:
        raise ValueError(f"file:// takes no storage options, got {sorted(options)}")
    if rest.startswith("localhost/"):
        rest = rest[len("localhost") :]
    if not rest:
        raise ValueError("file:// needs a folder")
    return LocalStore(Path(rest).expanduser().absolute())


def _s3(rest: str, options: dict[str, Any]) -> ObjectStore:
    from persist.store.s3 import S3Store  # boto is large: only who needs it waits for it
    from persist.store.s3_client import S3Client, S3Options

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
    """The URL without the user and password it may carry, and without a query."""
    return re.sub(r"//[^/@]*@", "//", url).partition("?")[0]
