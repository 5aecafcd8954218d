"""A reader of a copy in its own process: it repeatedly opens the file, counts and closes.

``python -m tests.bench.copy_reader FILE SECONDS`` prints the duration of each opening as JSON.
"""

from __future__ import annotations

import json
import sys
import time

from ingester.followers.duckdb_file import open_copy

PAUSE_S = 0.5


def main(path: str, seconds: float) -> None:
    """Open and close until the time is over."""
    waits, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        with open_copy(path, wait_s=60.0) as reader:
            waits.append(time.perf_counter() - began)
            reader.execute("SELECT count(*) FROM t").fetchall()
        time.sleep(PAUSE_S)
    print(json.dumps(waits))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
