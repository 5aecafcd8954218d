"""The process that ``warm`` starts: it imports everything once and forks for each order.

    order ─▶ serve ─ fork ─▶ one that ends at once ─ fork ─▶ the command

The double fork orphans the command, so that Linux reparents it to the subreaper: the process
that gave the order. The command ends with that process, and it shares only the imports with this
one.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

_PARENT_DEATH_SIGNAL = 1
_SHELL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP)
_MOST_BYTES = 1 << 20
_TUNABLES = os.environ.get("GLIBC_TUNABLES", "")


def serve(descriptor: int) -> None:
    """Import everything, then fork for every order until the socket closes."""
    _import_all()
    with socket.socket(fileno=descriptor) as orders:
        while True:
            said, streams, _, _ = socket.recv_fds(orders, _MOST_BYTES, 3)
            if not said:
                return
            told, tell = os.pipe()
            middle = os.fork()
            if not middle:
                # The intermediate child is reaped here; the command is orphaned and goes to the
                # subreaper.
                pid = os.fork()
                if not pid:
                    os.close(told)
                    os.close(tell)
                    orders.close()
                    _become(json.loads(said), streams)
                os.write(tell, str(pid).encode())
                os._exit(0)
            os.waitpid(middle, 0)
            # Wait first: until then the command is not yet the subreaper's child.
            orders.send(os.read(told, 64))
            os.close(told)
            os.close(tell)
            for each in streams:
                os.close(each)


def _import_all() -> None:
    from ingester.memory.heap_settings import choose_allocator

    choose_allocator()
    # Not `ingester.cli.app`: it must be imported with the environment of the command.
    for name in ("typer._adapters", "s3fs", "pyarrow.flight", "pyarrow.parquet", "pyarrow.csv"):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    for name in ("daemon.process", "client", "recovery.adopt", "config.sources"):
        importlib.import_module(f"ingester.{name}")
    for name in ("serve", "manifest_tools", "input.files", "output.formats", "wal_tools"):
        importlib.import_module(f"ingester.cli.{name}")
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("tests.drivers.s3_models").load_models()
    importlib.import_module("ingester.daemon.process_tuning").convert_once()
    # Objects that exist before the fork are excluded from the children's garbage collection.
    gc.collect()
    gc.freeze()


def _become(order: dict[str, Any], streams: Sequence[int]) -> NoReturn:
    """Run the command in this new process and end with its exit code."""
    code = 70
    try:
        _end_with(order["parent"])
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        for number in _SHELL_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        os.environ.clear()
        os.environ.update(order["environment"])
        os.chdir(order["cwd"])
        sys.path[:0] = filter(None, order["environment"].get("PYTHONPATH", "").split(os.pathsep))
        sys.argv = order["arguments"]
        try:
            _run_module(*order["arguments"])
            code = 0
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _run_module(name: str, *arguments: str) -> None:
    """Run a module as ``python -m`` does."""
    if name == "ingester":
        from ingester.cli import run

        run(arguments)
        return
    # The heap already uses huge pages, so the daemon does not need to re-execute itself.
    os.environ.setdefault("GLIBC_TUNABLES", _TUNABLES)
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _end_with(parent: int) -> None:
    """Have this process killed when the process that ordered it ends for any reason."""
    give_up_at = time.monotonic() + 10
    # Until the intermediate process has ended, it is still the parent.
    while os.getppid() != parent:
        if time.monotonic() > give_up_at:
            os._exit(71)
        os.sched_yield()
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(71)
