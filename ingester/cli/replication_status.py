"""``replicate status``: where replications into a namespace stand, as the daemon knows it."""

from __future__ import annotations

from typing import NoReturn

from ingester.client import Client, ListedCheckpoint, NotFound
from ingester.postgres.states import PREFIX

from .connecting import connect
from .exits import FAILED, CommandFailed
from .printing import print_json, print_line, print_table
from .replication_facts import KeptState, Replication, by_states, reported
from .replication_rows import TABLES, lines, rows


def print_replications(
    endpoint: str, namespace: str, origin: str | None, as_json: bool
) -> NoReturn:
    """Print each replication into the namespace with its tables, and end the command.

    Raises:
        SystemExit: 0; 1 where a table is set aside, or nobody reports.
        CommandFailed: there is no replication into the namespace.
        ClientError: no daemon.
    """
    with connect(endpoint) as client:
        listed = client.status_list("replications")
        found = [
            each
            for each in reported({"replications": listed})
            if each.namespace == namespace and origin in (None, each.origin)
        ]
        told = {each.origin for each in found}
        states = _states(client, namespace, origin, told)
    found += by_states(namespace, states)
    if not found:
        which = "" if origin is None else f" as origin {origin!r}"
        raise CommandFailed(
            f"nobody replicates into namespace {namespace!r}{which}:"
            " no replicator reports, and no table has the state of one"
        )
    if as_json:
        print_json({"replications": found})
    else:
        for number, each in enumerate(found):
            if number:
                print_line("")
            _print(each)
    raise SystemExit(0 if all(each.is_well for each in found) else FAILED)


def _states(client: Client, namespace: str, origin: str | None, told: set[str]) -> list[KeptState]:
    """The states of the namespace's tables, but of origins that a report has told of."""
    try:
        listed = client.checkpoints(namespace)
    except NotFound:
        return []
    found = []
    for each in listed:
        name = each.partition.removeprefix(PREFIX)
        if name == each.partition or name in told or origin not in (None, name):
            continue
        if (state := _state(client, each)) is not None:
            at = None if each.at is None else each.at.isoformat(timespec="seconds")
            found.append(KeptState(each.table, name, state, at))
    return found


def _state(client: Client, of: ListedCheckpoint) -> bytes | None:
    try:
        return client.checkpoint(of.namespace, of.table, of.partition).state
    except NotFound:
        return None  # dropped since the listing


def _print(replication: Replication) -> None:
    for line in lines(replication):
        print_line(line)
    if found := rows(replication):
        print_table(TABLES, found)
