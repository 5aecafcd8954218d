"""The namespaces and tables of a store that are published as Iceberg, and their newest metadata.

A namespace is a folder of the store. A table is published while its pin exists: what is left of a
table whose publishing was switched off lists files that garbage collection deletes. A listing takes
a request per thousand folders and one or two per table, several at a time, so it finds 1,000 tables
in seconds.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from persist.manifest import read_pins
from persist.manifest.paths import is_name, pin_path
from persist.publish.format import Head
from persist.publish.iceberg import IcebergTable
from persist.store import ObjectStore, folders
from persist.table import TableKey

_READERS = 8


def namespaces(store: ObjectStore) -> list[str]:
    """The namespaces of a store, sorted."""
    return sorted(name for name in folders(store, "") if is_name(name))


def has_namespace(store: ObjectStore, namespace: str) -> bool:
    """Whether the store has a namespace of this name; False for a name that none can have."""
    return is_name(namespace) and next(store.list(f"{namespace}/"), None) is not None


def published_tables(store: ObjectStore, namespace: str) -> list[str]:
    """The names of a namespace's published tables, sorted."""
    found = sorted(name for name in folders(store, f"{namespace}/") if is_name(name))
    with ThreadPoolExecutor(_READERS, thread_name_prefix="published") as pool:
        published = pool.map(partial(is_published, store, namespace), found)
        return [name for name, is_one in zip(found, published, strict=True) if is_one]


def pinned_tables(store: ObjectStore) -> list[TableKey]:
    """The tables of a store that are published in any format, sorted."""
    keys = [
        (namespace, table)
        for namespace in namespaces(store)
        for table in sorted(folders(store, f"{namespace}/"))
        if is_name(table)
    ]
    with ThreadPoolExecutor(_READERS, thread_name_prefix="published") as pool:
        pins = pool.map(lambda key: read_pins(store, *key), keys)
        return [key for key, found in zip(keys, pins, strict=True) if found]


def is_published(store: ObjectStore, namespace: str, table: str) -> bool:
    """Whether a table is published; False for a name that none can have."""
    if not _is_pinned(store, namespace, table):
        return False
    # The pin precedes the first publication, and the hint follows it.
    return store.exists(f"{namespace}/{table}/metadata/version-hint.text") is not None


def newest(store: ObjectStore, namespace: str, table: str) -> tuple[Head, bytes] | None:
    """A table's newest version with its metadata file's content, a JSON object.

    None if the table does not exist or is not published.

    Raises:
        ForeignCommit: the newest metadata is not the ingester's.
        StoreError: the store cannot be read.
    """
    if not _is_pinned(store, namespace, table):
        return None
    return IcebergTable(store, namespace, table).newest_metadata()


def _is_pinned(store: ObjectStore, namespace: str, table: str) -> bool:
    if not (is_name(namespace) and is_name(table)):
        return False
    return store.exists(pin_path(namespace, table, IcebergTable.name)) is not None
