"""The main program of a writing process: ``python -m tests.bench.peers.child DESCRIPTOR``.

Commands arrive through the pipe of this descriptor. A function's name comes first and its
arguments second, because unpickling the arguments needs the module that the name leads to.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.connection import Connection


class _NoPandas:
    """Makes pandas appear to be missing."""

    def find_spec(self, name: str, *_: object) -> None:
        """Report pandas as missing; leave other modules to the next finder."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


@contextmanager
def _without_pandas() -> Iterator[None]:
    """Hide pandas while pyarrow looks for it once: importing it takes each process a second."""
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _main(descriptor: int) -> None:
    with _without_pandas():
        import_module("tests.bench.rows")
    pipe = Connection(descriptor)
    module, name = pipe.recv()
    main = getattr(import_module(module), name)
    main(pipe, *pipe.recv())


if __name__ == "__main__":
    _main(int(sys.argv[1]))
