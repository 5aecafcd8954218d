"""The namespaces and tables of a store that are published as Iceberg, and their newest metadata.

A namespace is a folder of the store, and a table is one with metadata of the ingester. A listing
takes a request per thousand folders and one per table, so it finds 1,000 tables in seconds. It goes
by ``metadata/version-hint.text``, which a publication writes last; :func:`newest` reads the
metadata itself.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from persist.manifest.paths import is_name
from persist.publish.format import Head
from persist.publish.iceberg import IcebergTable
from persist.store import ObjectStore, folders

HINT = "metadata/version-hint.text"
_READERS = 4


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
        hints = pool.map(store.exists, (f"{namespace}/{name}/{HINT}" for name in found))
        return [name for name, hint in zip(found, hints, strict=True) if hint is not None]


def is_published(store: ObjectStore, namespace: str, table: str) -> bool:
    """Whether a table is published; False for a name that none can have."""
    if not (is_name(namespace) and is_name(table)):
        return False
    return store.exists(f"{namespace}/{table}/{HINT}") is not None


def newest(store: ObjectStore, namespace: str, table: str) -> tuple[Head, bytes] | None:
    """A table's newest version with its metadata file's content, a JSON object.

    None if the table does not exist or is not published.

    Raises:
        ForeignCommit: the newest metadata is not the ingester's.
        StoreError: the store cannot be read.
    """
    if not (is_name(namespace) and is_name(table)):
        return None
    return IcebergTable(store, namespace, table).newest_metadata()
