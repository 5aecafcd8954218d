"""``checkpoints``: list the checkpoints of sources, or delete one."""

import datetime
from collections.abc import Sequence
from difflib import get_close_matches

from .connecting import connect
from .exits import CommandFailed
from .printing import print_json, print_line, print_table, size

_NAMED = 10
"""Maximum number of partitions that a message names."""


def print_checkpoints(
    endpoint: str, namespace: str | None, table: str | None, as_json: bool
) -> None:
    """Print each checkpoint with its size, age, and whether it is in object storage.

    Raises:
        ClientError: No such table, or no daemon.
    """
    with connect(endpoint) as client:
        found = client.checkpoints(namespace, table)
    if as_json:
        print_json(found)
        return
    if not found:
        print_line("no checkpoints")
        return
    now = datetime.datetime.now(datetime.UTC)
    rows = [
        (
            one.namespace,
            one.table,
            one.partition,
            size(one.bytes),
            size(one.shared_bytes) if one.shared_id else "-",
            _age(one.at, now),
            "durable" if one.durable else "in the log",
            one.origin,
        )
        for one in found
    ]
    headings = ["namespace", "table", "partition", "size", "shared", "age", "kept", "origin"]
    print_table(headings, rows)


def delete_checkpoint(endpoint: str, table: tuple[str, str], partition: str, as_json: bool) -> None:
    """Delete a checkpoint and print its size.

    Raises:
        CommandFailed: The table has no checkpoint of this partition.
        ClientError: No such table, or no daemon.
    """
    with connect(endpoint) as client:
        listed = client.checkpoints(*table)
        gone = next((each for each in listed if each.partition == partition), None)
        if gone is None:
            raise CommandFailed(_unknown(table, partition, [each.partition for each in listed]))
        client.delete_checkpoint(*table, partition)
    if as_json:
        print_json(gone)
        return
    print_line(
        f"deleted checkpoint {partition!r} of {'/'.join(table)} ({size(gone.bytes)});"
        " object storage is updated with the table's next commit"
    )


def _unknown(table: tuple[str, str], partition: str, there: Sequence[str]) -> str:
    name = "/".join(table)
    if not there:
        return f"table {name} has no checkpoints"
    close = get_close_matches(partition, there, 1)
    if close:
        helps = f"did you mean {close[0]!r}?"
    elif len(there) <= _NAMED:
        helps = f"it has {', '.join(map(repr, there))}"
    else:
        helps = f"`ingester checkpoints {' '.join(table)}` lists all {len(there)}"
    return f"table {name} has no checkpoint {partition!r}; {helps}"


def _age(at: datetime.datetime | None, now: datetime.datetime) -> str:
    if at is None:
        return "-"
    age_s = max(0.0, (now - at).total_seconds())
    for unit, unit_s, until_s in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if age_s < until_s:
            return f"{age_s / unit_s:.0f} {unit}"
    return f"{age_s / 86_400:.0f} days"
