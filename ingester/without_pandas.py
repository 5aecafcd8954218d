"""Daemon and command line have no use for pandas, and Arrow loads it wherever it is installed.

It does so with the first scalar that it makes: a third of a second and tens of megabytes, in the
middle of some query.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NotHere(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("ingester does without pandas", name=fullname)
        return None


def do_without_pandas() -> None:
    """Make pandas look as if it were not installed, in this process and from now on."""
    sys.meta_path.insert(0, _NotHere())
