"""The rows that the tests write (one integer column), and those that a daemon received."""

import pyarrow as pa

from tests.client.small_daemon import SmallDaemon

SCHEMA = pa.schema([("v", pa.int64())])


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


def values(daemon: SmallDaemon) -> list[int]:
    found: list[int] = daemon.table("ns", "t").column("v").to_pylist()
    return found
