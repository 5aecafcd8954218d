"""A store in memory whose log objects are created when the test says so, or with faults."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import trio

from persist.store import PutInfo, StoreUnavailable
from tests.drivers.memory_store import MemoryStore
from wal.objects import LogObject, decode_object, object_path, parse_object

ID, EPOCH = "pod-0", 3


class HeldStore(MemoryStore):
    """Creates of log objects can be held by number, refused, or lose their answers."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []
        """The numbers of the log objects whose creation was requested, with repetitions."""
        self.refused: dict[int, int] = defaultdict(int)
        """By number: how many requests are still answered with 503 and do nothing."""
        self.lost: dict[int, int] = defaultdict(int)
        """By number: how many requests still succeed and lose their answers."""
        self._held: dict[int, threading.Event] = {}
        self._began = threading.Condition()

    def hold(self, *numbers: int) -> None:
        """Hold the creation of these objects until `let_go`."""
        self._held.update({number: threading.Event() for number in numbers})

    def let_go(self, *numbers: int) -> None:
        for number in numbers or tuple(self._held):
            self._held[number].set()

    async def wait_for(self, number: int) -> None:
        """Return when the creation of an object was requested."""

        def wait() -> None:
            with self._began:
                assert self._began.wait_for(lambda: number in self.begun, 20)

        await trio.to_thread.run_sync(wait)

    def create(self, path: str, data: Any) -> PutInfo:
        name = parse_object(path)
        if name is None:
            return super().create(path, data)
        with self._began:
            self.begun.append(name.number)
            self._began.notify_all()
        if (held := self._held.get(name.number)) is not None:
            assert held.wait(20)
        if self.refused[name.number]:
            self.refused[name.number] -= 1
            raise StoreUnavailable("503")
        made = super().create(path, data)
        if self.lost[name.number]:
            self.lost[name.number] -= 1
            raise StoreUnavailable("the answer was lost")
        return made

    def objects(self) -> list[LogObject]:
        """The log objects of the tests' epoch, ascending."""
        paths = [info.path for info in self.list("_log/")]
        return [decode_object(self.get(path), path) for path in paths]

    def object(self, number: int) -> LogObject:
        path = object_path(ID, EPOCH, number)
        return decode_object(self.get(path), path)
