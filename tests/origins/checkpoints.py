"""Requests about checkpoints, made over the wire without the client library."""

from __future__ import annotations

import base64
from collections.abc import Iterable

import pyarrow.flight as fl

from tests.drivers.daemon import Daemon
from tests.drivers.wire import Json, act, put
from tests.origins.senders import ORIGIN, TABLE, batch

PARTITION = "topic-0"


def text(state: bytes) -> str:
    """A state in its wire form."""
    return base64.b64encode(state).decode()


def checkpoint(state: bytes, partition: str = PARTITION, **fields: object) -> Json:
    """A checkpoint in a batch's metadata."""
    return {"partition": partition, "state": text(state), **fields}


def state_of(number: int) -> bytes:
    """The state after a sequence."""
    return f"after {number}".encode()


def send_with_states(daemon: Daemon, numbers: Iterable[int], *, days: int = 3) -> list[Json]:
    """Write sequences in one stream, each with the state after it; return the answers."""
    numbers = list(numbers)
    metadata = [{"sequence": each, "checkpoint": checkpoint(state_of(each))} for each in numbers]
    with fl.connect(daemon.flight) as client:
        batches = [batch(number, days=days) for number in numbers]
        return put(client, TABLE, *batches, origin=ORIGIN, metadata=metadata)


def get(daemon: Daemon, partition: str = PARTITION) -> tuple[bytes | None, bytes | None]:
    """The state in the log, and the one in object storage."""
    found = asked(daemon, "checkpoint_get", partition=partition)
    states = (_bytes(found["state"]), _bytes(found["durable_state"]))
    assert found["durable"] == (states[0] == states[1]), found
    return states


def put_state(daemon: Daemon, state: bytes, partition: str = PARTITION, **fields: object) -> Json:
    """Commit a state without rows."""
    body = {"partition": partition, "state": text(state), **fields}
    return asked(daemon, "checkpoint_put", **body)


def delete_state(daemon: Daemon, partition: str = PARTITION) -> Json:
    return asked(daemon, "checkpoint_delete", partition=partition)


def asked(daemon: Daemon, action: str, **body: object) -> Json:
    """The single answer to an action on the table."""
    with fl.connect(daemon.flight) as client:
        (found,) = act(client, action, namespace=TABLE[0], table=TABLE[1], **body)
    return found


def listed(daemon: Daemon) -> dict[str, Json]:
    """All checkpoints of the table, by partition."""
    with fl.connect(daemon.flight) as client:
        found = act(client, "checkpoints", namespace=TABLE[0], table=TABLE[1])
    return {each["partition"]: each for each in found}


def _bytes(state: str | None) -> bytes | None:
    return None if state is None else base64.b64decode(state)
