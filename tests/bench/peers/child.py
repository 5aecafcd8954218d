"""The main program of a writing process: ``python -m tests.bench.peers.child DESCRIPTOR``.

Law of this file: what to do comes down the pipe of this descriptor, first the name of a function,
then its arguments, because only after the first the module of the second is known.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.connection import Connection


class _NoPandas:
    """Finds that there is no pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        """No module is found here; this one nowhere."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


@contextmanager
def _without_pandas() -> Iterator[None]:
    """While pyarrow looks for it once, and would import it: a second of every process."""
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
