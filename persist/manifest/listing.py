"""Which tables a store holds.

Law of this file: a table exists once a version of it is committed; folders without a commit are
none. The store has no listing of folders, so this one leaps: the first object of a folder names it,
and the next search begins behind all that lies in it.
"""

from __future__ import annotations

from persist.manifest.paths import after_folder, is_name, parse_entry
from persist.manifest.reading import current_table_version
from persist.store import ObjectStore


def list_tables(store: ObjectStore) -> list[tuple[str, str]]:
    """All (namespace, table), in order of their paths. Takes a few requests for each."""
    tables = []
    start = ""
    while (path := _first(store, "", start)) is not None:
        namespace, _, rest = path.partition("/")
        table, _, inside = rest.partition("/")
        if not is_name(namespace) or not rest:
            start = after_folder(namespace) if rest else path
        elif not inside or not is_name(table):
            start = after_folder(f"{namespace}/{table}") if inside else path
        else:
            if _has_commit(store, f"{namespace}/{table}"):
                tables.append((namespace, table))
            start = after_folder(f"{namespace}/{table}")
    return tables


def _has_commit(store: ObjectStore, folder: str) -> bool:
    manifest = f"{folder}/v{current_table_version(store, folder)}/_manifest/"
    entries = (parse_entry(info.path) for info in store.list(manifest))
    return any(entry is not None and entry.kind == "commit" for entry in entries)


def _first(store: ObjectStore, prefix: str, start_after: str) -> str | None:
    for info in store.list(prefix, start_after):
        return info.path
    return None
