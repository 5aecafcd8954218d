"""A running peer: its server, if it has one, and the processes that write to it.

The end of the ``with`` block kills everything, without a clean shutdown, so that a later reader
of the peer's data sees only what was acknowledged. The processes run the interpreter of the
peers' own environment. The ``spawn`` method of :mod:`multiprocessing` cannot do that, as it
passes the parent's ``sys.path`` on.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.children import ChildFailed
from tests.bench.clients import Written
from tests.bench.peers import child, writing
from tests.bench.peers.installing import Installation
from tests.bench.peers.peer import Peer, Settle, WriteJob
from tests.bench.streams import PutResult
from tests.drivers.daemon import ROOT

_PATIENCE_S = 120.0
"""Time limit of everything before and after the measured time."""
_SETTLING_S = 600.0
"""Time limit of a checkpoint after minutes of writing."""


class _Process:
    """A process of another interpreter that runs ``main(pipe, *args)``, a module-level function."""

    def __init__(self, python: Path, main: Callable[..., None], *args: object) -> None:
        self._pipe, its_end = Pipe()
        self._process = subprocess.Popen(
            [str(python), "-m", child.__name__, str(its_end.fileno())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            pass_fds=[its_end.fileno()],
        )
        its_end.close()
        self._pipe.send((main.__module__, main.__qualname__))
        self._pipe.send(args)

    def send(self, message: object) -> None:
        """Send a command."""
        self._pipe.send(message)

    def receive(self, after_s: float = 0.0) -> Any:
        """Wait for the next answer, to a command that itself takes ``after_s`` seconds.

        Raises:
            ChildFailed: The process answered with an exception, not at all, or is gone.
        """
        try:
            if not self._pipe.poll(after_s + _PATIENCE_S):
                raise ChildFailed(f"no answer for {after_s + _PATIENCE_S:g} s")
            answer = self._pipe.recv()
        except (EOFError, ConnectionError) as exc:
            raise ChildFailed("the writing process ended without an answer") from exc
        if isinstance(answer, BaseException):
            raise ChildFailed(str(answer)) from answer
        return answer

    def end(self) -> None:
        """Kill it and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()


class RunningPeer:
    """A peer that accepts writes after :meth:`wait`; made by :func:`started`."""

    def __init__(self, peer: Peer, python: Path, address: str, stack: ExitStack) -> None:
        self.peer = peer
        self._processes: list[_Process] = []
        for _ in range(peer.processes):
            process = _Process(python, writing.main, peer.open, address)
            stack.callback(process.end)
            self._processes.append(process)
        for process in self._processes:
            process.send(None)
        self.version = ""

    def wait(self) -> None:
        """Wait until all processes are ready; the version is known then.

        Raises:
            ChildFailed: One of them could not open the store.
        """
        for process in self._processes:
            self.version = str(process.receive())

    def write(self, job: WriteJob) -> Written:
        """Run a job with its writers spread over the processes.

        Returns:
            The batches acknowledged within the measured time; each writer's first batch precedes
            it.

        Raises:
            ChildFailed: The peer refused a batch, or an answer is missing.
        """
        chosen = self._processes[: job.writers]
        self._ask(chosen[:1], job.table)
        share, more = divmod(job.writers, len(chosen))
        first = 0
        for number, process in enumerate(chosen):
            writers = share + (number < more)
            process.send(writing.Share(job, writers, first))
            first += writers
        for process in chosen:
            process.receive()
        results: list[PutResult] = self._ask(chosen, None, job.seconds)
        return Written(
            rows=sum(result.rows for result in results),
            batches=sum(result.batches for result in results),
            seconds=max(r.ended for r in results) - min(r.began for r in results),
            latencies=np.concatenate([result.latencies for result in results]),
        )

    def settle(self) -> float:
        """Flush the peer's log to its files; return the seconds that it took.

        Raises:
            ChildFailed: The flush failed.
        """
        [seconds] = self._ask(self._processes[:1], Settle(), _SETTLING_S)
        return float(seconds)

    @staticmethod
    def _ask(processes: list[_Process], message: object, after_s: float = 0.0) -> list[Any]:
        for process in processes:
            process.send(message)
        return [process.receive(after_s) for process in processes]


@contextmanager
def started(peer: Peer, folder: Path, installation: Installation) -> Iterator[RunningPeer]:
    """Start a peer with its data in a folder of its own; it is killed when the ``with`` block ends.

    Raises:
        Missing: A requirement of the peer is missing.
    """
    with ExitStack() as stack:
        python = installation.python_with(peer.packages)
        folder.mkdir(parents=True, exist_ok=True)
        address = str(folder)
        if peer.serve is not None:
            address = stack.enter_context(peer.serve(folder, installation))
        yield RunningPeer(peer, python, address, stack)
