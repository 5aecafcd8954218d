"""The folders of a store, where it can list them without the objects below them.

Local files and S3 can; of any other store the first object of a folder names it, and the next
search begins after the folder (tests/persist/store/test_folders.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from persist.store.contract import ObjectStore


@runtime_checkable
class ListsFolders(Protocol):
    """A store that lists folders itself."""

    def folders(self, prefix: str) -> Iterator[str]:
        """As :func:`folders`."""
        ...


def folders(store: ObjectStore, prefix: str) -> Iterator[str]:
    """The names of the folders directly below ``prefix``, in order of their paths.

    On local files also those whose objects were deleted.

    Args:
        prefix: a folder with its final '/', or "" for the whole store. A missing folder has none.
    """
    if isinstance(store, ListsFolders):
        yield from store.folders(prefix)
        return
    start = ""
    while (found := next(store.list(prefix, start), None)) is not None:
        name, is_folder, _ = found.path.removeprefix(prefix).partition("/")
        if is_folder:
            yield name
        # '0' follows '/': a name that sorts after everything below the folder.
        start = f"{prefix}{name}0" if is_folder else found.path
