"""DoAction: requests beside reading and writing rows.

:data:`ACTIONS` has one entry per action. Each takes a checked body, runs on the loop and returns
JSON objects.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from ingester.buffer import TableBuffer
from ingester.config.levels import parse_level
from ingester.copies.table_copy import CopyName
from ingester.errors import BadRequest, NotAvailable
from ingester.observability.log_levels import LEVELS
from ingester.observability.status import OriginStatus
from ingester.observability.status_lists import PageRequest
from ingester.query.live_followers import Coming
from ingester.reports.replications import ReplicationReport
from ingester.schema.definition import check_properties, define_table, with_properties
from ingester.schema.limits import check_shown, check_table_name
from ingester.server.auth.access import Permit
from ingester.server.auth.rights import Sees
from ingester.server.flight.requests import (
    CheckpointBody,
    CheckpointPutBody,
    CheckpointsBody,
    CopyBody,
    CopyFinishBody,
    CreateTableBody,
    DrainBody,
    EmptyBody,
    FollowersBody,
    FollowersPrepareBody,
    LogLevelBody,
    OriginsBody,
    PersistBody,
    TableBody,
    check_copy_name,
    parse_body,
)
from ingester.server.services import Services
from ingester.shown_text import shown_name
from ingester.tables.origin_takeover import store_asked_of
from ingester.write.checkpoints import CheckpointAnswer
from ingester.write.metadata import SharedStates, check_partition, parse_checkpoint
from persist.manifest import live_owner

Objects = list[Any]
DEFAULT_LEVEL = "default"
"""Resets a level that was set."""


@dataclass(frozen=True, slots=True)
class FlightAction:
    """One action: its description, the type of its body, and the function that runs it.

    ``run`` takes services and body; with ``sees`` also which namespaces the caller may see.
    """

    description: str
    body: type
    run: Callable[..., Awaitable[Objects]]
    sees: bool = False


def describe(services: Services, table: TableBuffer) -> dict[str, Any]:
    """Return the answer of ``describe_table`` and ``create_table``."""
    definition, state = table.definition, table.state
    owner = live_owner(state) if definition.keyed else None
    return {
        "namespace": table.namespace,
        "table": table.name,
        "schema": [
            {"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in definition.schema
        ],
        "primary_key": list(definition.primary_key),
        "partition_by": list(definition.spec.texts()),
        "sort_by": list(definition.sort_by),
        "timestamp_unit": definition.timestamp_unit,
        "transformers": [
            {"class": each.name, "version": each.version, "previous": each.previous}
            for each in definition.transformers
        ],
        "publish": None if definition.publish is None else list(definition.publish),
        "max_age_s": definition.max_age_s,
        "ack": services.writes.levels.level(table.key, definition.ack),
        "published": msgspec.to_builtins(services.publishing.of_table(table.key)),
        "manifest_version": state.version,
        "table_version": state.table_version,
        "buffered": {
            "rows": table.rows,
            "bytes": table.nbytes,
            "partitions": len(table.partitions),
        },
        "persisted": {"rows": state.rows, "bytes": state.bytes, "files": state.file_count},
        "owner": None
        if owner is None
        else {"ingester_id": owner.ingester_id, "endpoint": owner.endpoint or None},
    }


async def _create_table(services: Services, body: CreateTableBody) -> Objects:
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(body.schema, validate=True)))
    except (ValueError, pa.ArrowException, OSError, EOFError) as exc:
        raise BadRequest(
            f"create_table: 'schema' is not an Arrow IPC schema in base64: {exc}"
        ) from exc
    definition = define_table(
        schema,
        primary_key=body.primary_key,
        partition_by=body.partition_by,
        sort_by=body.sort_by,
        timestamp_unit=body.timestamp_unit,
        limits=services.catalog.rules.shapes,
    )
    transforms, asked = services.writes.transforms, body.transformers
    key = (
        check_table_name("namespace", body.namespace),
        check_table_name("table", body.table),
    )
    definition = await transforms.defined(key, definition, asked or ())
    ack = parse_level("create_table", body.ack)
    services.writes.levels.check_disk(ack)
    definition = with_properties(definition, body.publish, body.max_age_s, ack)
    services.publishing.check_definition(key, definition)
    table = await services.catalog.create(*key, definition)
    have = transforms.names_of(key, table.definition)
    # The settings win; the caller cannot change them.
    if asked is not None and not transforms.is_settled(key) and tuple(asked) != have:
        raise BadRequest(
            f"table {'/'.join(key)} exists with transformers {list(have)}, asked for {asked}"
        )
    check_properties(table.definition, definition, key)
    return [describe(services, table)]


async def _describe_table(services: Services, body: TableBody) -> Objects:
    table = await services.catalog.open(body.namespace, body.table)
    await services.queries.refresh(table)
    return [describe(services, table)]


async def _persist(services: Services, body: PersistBody) -> Objects:
    if body.table is not None and body.namespace is None:
        raise BadRequest("persist: a 'table' needs its 'namespace'")
    if not 0 <= body.timeout_s <= 86_400:
        raise BadRequest(f"persist: timeout_s {body.timeout_s} is not between 0 and 86400")
    tables = await services.persist(body.namespace, body.table, body.timeout_s)
    return [
        {
            "namespace": t.namespace,
            "table": t.name,
            "manifest_version": t.state.version,
            "table_version": t.state.table_version,
        }
        for t in tables
    ]


async def _drain(services: Services, body: DrainBody) -> Objects:
    if not 0 <= body.wait_s <= 86_400:
        raise BadRequest(f"drain: wait_s {body.wait_s} is not between 0 and 86400")
    return [msgspec.to_builtins(await services.drain(body.undo, body.wait_s))]


async def _origins(services: Services, body: OriginsBody, sees: Sees | None) -> Objects:
    known = services.known_origins
    if body.namespace is None and body.table is None:
        return list(await known.find(body.origin, sees))
    if body.origin is None or body.namespace is None or body.table is None:
        raise BadRequest("origins: of a table takes 'origin', 'namespace' and 'table'")
    with store_asked_of(body.origin):
        table = await services.catalog.open(body.namespace, body.table)
        # Without the newest version, rows that another daemon has committed would be missing.
        await services.catalog.refresh(table, -1.0)
    found = await known.find(body.origin, sees)
    facts = found[0] if found else OriginStatus(origin=body.origin)
    upto, newest, partly, marks, there = known.standing(body.origin, table)
    told = {"table_sequence": upto, "table_newest": newest, "table_partly": partly}
    return [msgspec.structs.asdict(facts) | told | {"marks": marks, "there": there}]


async def _status(services: Services, _body: EmptyBody, sees: Sees | None) -> Objects:
    return [services.status(sees)]


async def _status_list(services: Services, body: PageRequest, sees: Sees | None) -> Objects:
    return [services.status_page(body, sees)]


async def _get_checkpoint(services: Services, body: CheckpointBody) -> Objects:
    check_partition("checkpoint_get", body.partition)
    key = (body.namespace, body.table, body.partition)
    return _told(await services.checkpoints.get(*key, body.table_version))


async def _put_checkpoint(services: Services, body: CheckpointPutBody) -> Objects:
    calls = services.checkpoints
    checkpoint = parse_checkpoint(
        "checkpoint_put",
        body.partition,
        body.state,
        (body.shared, body.shared_id),
        calls.shared_of(body.namespace, body.table),
    )
    return _told(await calls.put(body.namespace, body.table, checkpoint, body.table_version))


async def _delete_checkpoint(services: Services, body: CheckpointBody) -> Objects:
    states = SharedStates()
    deleted = parse_checkpoint("checkpoint_delete", body.partition, None, (None, None), states)
    key = (body.namespace, body.table)
    return _told(await services.checkpoints.put(*key, deleted, body.table_version))


def _told(found: CheckpointAnswer) -> Objects:
    def text(state: bytes | None) -> str | None:
        return None if state is None else base64.b64encode(state).decode()

    return [
        {
            "table_version": found.table_version,
            "partition": found.partition,
            "state": text(found.state),
            "shared": text(found.shared),
            "durable": found.durable,
            "durable_state": text(found.durable_state),
            "durable_shared": text(found.durable_shared),
        }
    ]


async def _checkpoints(services: Services, body: CheckpointsBody, sees: Sees | None) -> Objects:
    return [
        {
            "namespace": each.table[0],
            "table": each.table[1],
            "table_version": each.table_version,
            "partition": each.partition,
            "bytes": each.bytes,
            "shared_id": each.shared_id,
            "shared_bytes": each.shared_bytes,
            "at": each.at,
            "durable": each.durable,
            "origin": each.origin,
        }
        for each in await services.checkpoints.listed(body.namespace, body.table)
        if sees is None or sees(each.table[0])
    ]


async def _finish_copy(services: Services, body: CopyFinishBody) -> Objects:
    check_copy_name("copy_finish", body.copy)
    sent = body.checkpoint
    checkpoint = parse_checkpoint(
        "copy_finish", sent.partition, sent.state, (None, None), SharedStates()
    )
    name = CopyName((body.namespace, body.table), body.copy)
    return [msgspec.to_builtins(await services.copies.finish(name, body.rows, checkpoint))]


async def _abort_copy(services: Services, body: CopyBody) -> Objects:
    check_copy_name("copy_abort", body.copy)
    await services.copies.abort(CopyName((body.namespace, body.table), body.copy))
    return [{}]


async def _followers(services: Services, body: FollowersBody) -> Objects:
    table = await services.catalog.open(body.namespace, body.table)
    return [msgspec.to_builtins(each) for each in await services.live.followers.listed(table.key)]


async def _prepare_followers(services: Services, body: FollowersPrepareBody) -> Objects:
    check_shown("followers_prepare: push_id", body.push_id)
    table = await services.catalog.open(body.namespace, body.table)
    await services.catalog.refresh(table, -1.0)
    services.live.prepare(table, Coming(body.table_version, body.push_id))
    return [msgspec.structs.asdict(each) for each in services.live.followers.coming(table.key)]


async def _report_replication(services: Services, body: ReplicationReport) -> Objects:
    kept = services.reports.take(body)
    return [{"tables": len(kept.tables), "left_out": sum(kept.left_out.values())}]


async def _store(services: Services, body: EmptyBody) -> Objects:
    return [{"store": services.store_id} | msgspec.structs.asdict(services.writer)]


async def _change_log_level(services: Services, body: LogLevelBody) -> Objects:
    """Set a level if the body has one, and return the levels in force."""
    levels, level = services.log_levels, body.level
    if level is None and (body.logger or body.for_s is not None):
        raise BadRequest("log_level: a 'logger' and 'for_s' need a 'level'")
    if level is not None:
        known = next((each for each in LEVELS if each == level.lower()), None)
        if known is None and level.lower() != DEFAULT_LEVEL:
            raise BadRequest(
                f"log_level: {shown_name(level)} is none of {', '.join(LEVELS)} and {DEFAULT_LEVEL}"
            )
        try:
            levels.set(known, body.logger, body.for_s)
        except ValueError as exc:
            raise BadRequest(f"log_level: {exc}") from exc
    return [msgspec.to_builtins(levels.status())]


ACTIONS: dict[str, FlightAction] = {
    "create_table": FlightAction("Create a table", CreateTableBody, _create_table),
    "describe_table": FlightAction(
        "Schema, definition and sizes of a table", TableBody, _describe_table
    ),
    "persist": FlightAction(
        "Commit everything acknowledged so far to object storage", PersistBody, _persist
    ),
    "drain": FlightAction("Refuse writes, and flush everything into files", DrainBody, _drain),
    "origins": FlightAction(
        "The position of each origin's writes", OriginsBody, _origins, sees=True
    ),
    "checkpoint_get": FlightAction("Read a source's state", CheckpointBody, _get_checkpoint),
    "checkpoint_put": FlightAction("Store a source's state", CheckpointPutBody, _put_checkpoint),
    "checkpoint_delete": FlightAction(
        "Delete a source's state", CheckpointBody, _delete_checkpoint
    ),
    "checkpoints": FlightAction(
        "List the states of sources", CheckpointsBody, _checkpoints, sees=True
    ),
    "copy_finish": FlightAction("Replace the table by a copy", CopyFinishBody, _finish_copy),
    "copy_abort": FlightAction("Abort a copy", CopyBody, _abort_copy),
    "followers": FlightAction("List the followers of a table", FollowersBody, _followers),
    "followers_prepare": FlightAction(
        "Announce a version for followers to prepare",
        FollowersPrepareBody,
        _prepare_followers,
    ),
    "replication_report": FlightAction(
        "Report a replicator's state", ReplicationReport, _report_replication
    ),
    "log_level": FlightAction("Show or set the level of the log", LogLevelBody, _change_log_level),
    "store": FlightAction("The daemon's store and process identity", EmptyBody, _store),
    "status": FlightAction("The content of /api/status", EmptyBody, _status, sees=True),
    "status_list": FlightAction(
        "A page of one of the status's lists", PageRequest, _status_list, sees=True
    ),
}


async def run_action(services: Services, permit: Permit, name: str, body: bytes) -> Objects:
    """Run an action by name; return its JSON objects.

    Raises:
        NotAvailable: there is no such action.
        NotAuthenticated, AccessDenied: the caller may not ask for it.
    """
    action = ACTIONS.get(name)
    if action is None:
        there_are = ", ".join(ACTIONS)
        raise NotAvailable(
            f"such an action does not exist: {shown_name(name)}; there are {there_are}"
        )
    parsed: Any = parse_body(f"action {name}", body, action.body)
    asked, namespace = f"action {name}", getattr(parsed, "namespace", None)
    table = getattr(parsed, "table", None)
    permit.require(asked, namespace, table)
    sees = permit.sees(asked) if action.sees else None
    try:
        objects = await action.run(services, parsed, *((sees,) if action.sees else ()))
    except BaseException as exc:
        permit.done(asked, namespace, table, exc)
        raise
    permit.done(asked, namespace, table, None)
    return objects
