"""A process of clients, a thread each: ``… FOLDER SEED PACE CLIENT…``.

Client ``3`` is a writer, ``r1`` a reader.

    stdin:   {"endpoint": "grpc://…", "round": 3}     work there
             {"pause": 3}                             finish the pending writes, then wait
    stdout:  {"idle": "writer-7", "round": 3, "at": 12.5, "error": "…"}   idle; since when, and why

No client sends anything between its "idle" and the next round.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

from tests.crash.writer import CLIENT_FAILED, Onlooker, Writer

Said = queue.SimpleQueue[dict[str, Any] | None]
Client = Writer | Onlooker


class Turns:
    """The campaign's order to all clients of this process: the endpoint to use, or a pause."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._round = 0
        self._endpoint: str | None = None
        self.paused = threading.Event()
        self.ended = False

    def go(self, endpoint: str, round_: int) -> None:
        """Begin a round at this endpoint."""
        with self._changed:
            self.paused.clear()
            self._round, self._endpoint = round_, endpoint
            self._changed.notify_all()

    def end(self) -> None:
        """End all clients."""
        with self._changed:
            self.ended = True
            self.paused.set()
            self._changed.notify_all()

    def after(self, round_: int) -> tuple[int, str] | None:
        """Wait for the next round and return it with its endpoint; ``None`` at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended or self._round > round_)
            return None if self.ended or self._endpoint is None else (self._round, self._endpoint)


def run_client(client: Client, turns: Turns, said: Said) -> None:
    """The thread of one client."""
    round_ = 0
    while (turn := turns.after(round_)) is not None:
        round_, endpoint = turn
        try:
            error = client.work(endpoint, turns.paused)
        except BaseException as exc:
            error = f"{CLIENT_FAILED}: {exc!r}"
        said.put({"idle": client.name, "round": round_, "at": time.monotonic(), "error": error})


def main(arguments: list[str]) -> None:
    """Follow the orders until standard input ends."""
    folder, seed, rows_per_s, names = Path(arguments[0]), *arguments[1:3], arguments[3:]
    turns, said = Turns(), Said()
    threads = []
    for name in names:
        random = Random(f"{seed}/{name}")
        client: Client = (
            Onlooker(name, folder, random)
            if name.startswith("r")
            else Writer(int(name), folder, random, float(rows_per_s))
        )
        threads.append(threading.Thread(target=run_client, args=(client, turns, said)))
    speaker = threading.Thread(target=_speak, args=(said,))
    for thread in (*threads, speaker):
        thread.start()
    for line in sys.stdin:
        order = json.loads(line)
        if "pause" in order:
            turns.paused.set()
        else:
            turns.go(order["endpoint"], order["round"])
    turns.end()
    for thread in threads:
        thread.join()
    said.put(None)
    speaker.join()


def _speak(said: Said) -> None:
    while (event := said.get()) is not None:
        print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
