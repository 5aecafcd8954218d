"""A process of readers: ``python -m tests.stalled.reader ENDPOINT READERS``.

    stdout:  {"stalled": 25, "seconds": 1.2}                     all have read one part
    stdin:   {"go_on": 1}                                        this many resume, the others
        disconnect
    stdout:  {"rows": 812, "prefixes": {"0": 800, "1": 12}, "error": null}       one per reader

Between its first part and the order to resume, a reader does not touch its stream.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from tests.stalled.rows import NAMESPACE, TABLE, Seen


def main(endpoint: str, readers: int) -> None:
    """Open the streams, read one part each, wait, resume."""
    began = time.monotonic()
    ticket = fl.Ticket(json.dumps({"namespace": NAMESPACE, "table": TABLE}).encode())
    # One connection each: gRPC's read-ahead is bounded per connection too.
    options = [("grpc.use_local_subchannel_pool", 1)]
    clients = [fl.connect(endpoint, generic_options=options) for _ in range(readers)]
    streams = [client.do_get(ticket) for client in clients]
    seen = [Seen() for _ in streams]
    for stream, counted in zip(streams, seen, strict=True):
        counted.add(stream.read_chunk().data)
    _say({"stalled": readers, "seconds": round(time.monotonic() - began, 2)})
    order = json.loads(sys.stdin.readline() or '{"go_on": 0}')
    for stream in streams[order["go_on"] :]:
        stream.cancel()
    for stream, counted in list(zip(streams, seen, strict=True))[: order["go_on"]]:
        _say(_read_on(stream, counted))


def _read_on(stream: Any, seen: Seen) -> dict[str, Any]:
    error = None
    try:
        while True:
            seen.add(stream.read_chunk().data)
    except StopIteration:
        pass
    except (fl.FlightError, pa.ArrowException) as exc:
        error = f"{type(exc).__name__}: {exc}"[:500]
    return {"rows": seen.rows, "prefixes": seen.prefixes(), "error": error}


def _say(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
