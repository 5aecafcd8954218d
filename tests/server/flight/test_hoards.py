"""A silent client keeps nothing from others: what streams hold is counted, bounded, and ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.errors import MemoryFull
from ingester.server.flight.hoards import SILENT_S, Hoards
from tests.drivers.daemon import Daemon, Launch
from tests.drivers.waiting import until
from tests.drivers.wire import ARROW_AND_FLIGHT, extra, http, path

MIB = 1 << 20


def batch(nbytes: int) -> pa.RecordBatch:
    """One row, and a dictionary of so many bytes."""
    words = pa.array(["x" * nbytes])
    return pa.record_batch({"d": pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), words)})


class World:
    """A clock that a test turns, and the peers that were cut."""

    def __init__(self, most_bytes: int) -> None:
        self.now = 100.0
        self.cut: list[str] = []
        self.hoards = Hoards(most_bytes, self._cut, now=lambda: self.now)

    def _cut(self, peer: str) -> bool:
        self.cut.append(peer)
        return True


def test_the_silent_stream_that_holds_most_is_cut_and_only_when_somebody_waits() -> None:
    world = World(10 * MIB)
    hoards = world.hoards
    large, larger, asks = (hoards.join(peer, None) for peer in ("large", "larger", "asks"))
    large.waits = larger.waits = True
    hoards.took(large, batch(3 * MIB), False)
    hoards.took(larger, batch(5 * MIB), False)
    assert 8 * MIB <= hoards.nbytes < 8.1 * MIB
    world.now += 10 * SILENT_S
    assert world.cut == [], "nobody waits for it"
    larger.waits = False
    assert hoards.free()
    assert world.cut.pop() == "large", "the client of the other one waits for the daemon"
    world.now += 10 * SILENT_S
    larger.waits = True
    asks.at = world.now
    hoards.took(asks, batch(4 * MIB), False)
    assert world.cut == ["larger"]
    hoards.leave(larger)
    assert 7 * MIB <= hoards.nbytes < 7.1 * MIB
    for each in (large, asks):
        hoards.leave(each)
    assert hoards.nbytes == 0


def test_who_asks_is_refused_where_nobody_is_silent() -> None:
    world = World(4 * MIB)
    hoards = world.hoards
    first, second, plain = (hoards.join(peer, None) for peer in ("first", "second", "plain"))
    hoards.took(first, batch(3 * MIB), False)
    with pytest.raises(MemoryFull, match="of dictionaries beside those of open streams"):
        hoards.took(second, batch(2 * MIB), False)
    hoards.leave(second)
    # What has no dictionaries, or has them in the pool, holds nothing here.
    hoards.took(plain, pa.record_batch({"v": [1]}), False)
    hoards.took(hoards.join("pooled", None), batch(3 * MIB), True)
    assert 3 * MIB <= hoards.nbytes < 3.1 * MIB
    assert world.cut == []


class Silent:
    """A client that opens streams with dictionaries, and then says nothing on them."""

    def __init__(self, endpoint: str, compression: str | None) -> None:
        self._endpoint = endpoint
        self._rows = batch(6 * MIB)
        self._options = fl.FlightCallOptions(
            write_options=pa.ipc.IpcWriteOptions(compression=compression), timeout=60
        )
        self.held: list[tuple[Any, Any]] = []

    def opens(self) -> bool | None:
        """Whether one more stream is let in, which it holds; None where buffers are in the way."""
        client = fl.connect(self._endpoint)
        where = path(("h", f"t{len(self.held)}"))
        writer, reader = client.do_put(where, self._rows.schema, self._options)
        try:
            writer.write_batch(self._rows)
            if reader.read() is not None:
                self.held.append((writer, reader))
                return True
            writer.close()
        except ARROW_AND_FLIGHT as error:
            if extra(error)["code"] != "memory":
                raise
            return False if "no room" in str(error) else None
        return False

    def is_let_in(self) -> bool:
        """Whether one more stream is let in."""
        return self.opens() is True


def test_a_silent_client_is_cut_for_one_that_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Launch, "warm", False)  # its memory is laid out when it starts
    with Daemon.start(
        tmp_path / "d", memory__limit="256MiB", flight__max_batch_bytes="8MiB"
    ) as daemon:
        silent = {"dictionaries": Silent(daemon.flight, None)}
        silent["decoding"] = Silent(daemon.flight, "zstd")
        fit = 0
        for kind, client in silent.items():
            fit += _filled(daemon, client)
            assert _told(daemon)["admission"]["memory"]["by_kind"][kind] >= 6 * MIB
        for client in silent.values():
            until(client.is_let_in, "a silent stream to be cut")
        held = sum(len(client.held) for client in silent.values())
        assert _cut(daemon) == held - fit > 0, "only what is wanted is cut"


def _filled(daemon: Daemon, client: Silent) -> int:
    """Open streams until no more of them fit; return how many do.

    One is refused then, or let in where this took so long that a silent one is cut for it.
    """
    before = _cut(daemon)
    while client.opens() is not False:
        if _cut(daemon) > before:
            return len(client.held) - 1
        assert len(client.held) < 20, "nothing bounds it"
    return len(client.held)


def _cut(daemon: Daemon) -> int:
    return int(_told(daemon)["connections"]["cut"])


def _told(daemon: Daemon) -> Any:
    return json.loads(http(f"{daemon.http}/api/status")[2])
