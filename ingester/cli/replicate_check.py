"""``ingester replicate postgres --check``: print what could be followed; change nothing."""

from collections.abc import Iterator

from ingester.postgres.checking import Check, CheckedTable, check
from ingester.postgres.conditions import Hindrance
from ingester.postgres.names import BadRename, Names
from ingester.postgres.options import Options
from ingester.postgres.server_errors import SourceFailed

from .exits import FAILED, UNREACHABLE, USAGE, CommandFailed
from .printing import print_json, print_line


def check_postgres(options: Options, as_json: bool) -> None:
    """Print the result of a dry run.

    Raises:
        CommandFailed: something cannot be followed (1), or the server is unreachable (3).
    """
    import psycopg2

    try:
        names = Names(options.renames)
        found = check(options.dsn, options.publication, options.slot, options.tables, names)
    except BadRename as exc:
        raise CommandFailed(str(exc), USAGE) from exc
    except SourceFailed as exc:
        raise CommandFailed(exc.with_help, FAILED) from exc
    except psycopg2.OperationalError as exc:
        raise CommandFailed(str(exc), UNREACHABLE) from exc
    if as_json:
        print_json(found)
    else:
        for line in _lines(found):
            print_line(line)
    if not found.is_fine:
        raise CommandFailed(_verdict(found), FAILED)


def _lines(found: Check) -> Iterator[str]:
    server = found.server
    yield f"source       {found.source}"
    major, minor = divmod(server.version_num, 10_000)
    yield (
        f"server       PostgreSQL {major}.{minor}, wal_level {server.wal_level};"
        f" free: {server.slots_free} slots, {server.senders_free} WAL senders"
    )
    reads = "may" if server.may_replicate else "may not"
    sees = "bypasses row security" if server.bypasses_rls else "is subject to row security"
    yield f"role         {server.role}: {reads} read the log; {sees}"
    yield f"publication  {found.publication.name}: {_publication(found)}"
    yield f"slot         {found.slot.name}: {_slot(found)}"
    for problem in found.problems:
        yield ""
        yield from _hindered("nothing can be followed", problem)
    for table in found.tables:
        yield ""
        yield from _table(table)
    if found.would_run:
        yield ""
        yield "a start would run"
        yield from (f"    {command}" for command in found.would_run)
    if found.is_fine:
        yield ""
        yield f"all {len(found.tables)} tables can be followed"


def _publication(found: Check) -> str:
    facts = found.publication
    if not facts.exists:
        return "missing"
    tables = "all tables" if facts.all_tables else "some tables"
    made = "created by a start" if facts.ours else "created by somebody else, used unchanged"
    root = ", partitions as their root table" if facts.via_root else ""
    return f"{made}; {tables}{root}"


def _slot(found: Check) -> str:
    slot = found.slot
    if not slot.exists:
        return "missing: a start creates it"
    reader = f", read by process {slot.active_pid}" if slot.active_pid else ", no reader"
    return f"keeps {slot.held_bytes:,} B of the server's log{reader}"


def _table(table: CheckedTable) -> Iterator[str]:
    name = f"{table.source} as {table.table}"
    if table.can_be_followed:
        yield f"{name}: can be followed"
    else:
        yield from _hindered(f"{name}: cannot be followed", Hindrance(table.reason, table.helps))
    yield from (f"    note: {note}" for note in table.notes)
    if table.breaks:
        yield f"    AT THE SOURCE: {table.breaks}"


def _hindered(what: str, found: Hindrance) -> Iterator[str]:
    yield f"{what}: {found.reason}"
    yield from (f"    helps: {each}" for each in found.helps)


def _verdict(found: Check) -> str:
    not_followed = sum(not table.can_be_followed for table in found.tables)
    if found.problems:
        return f"nothing can be followed: {'; '.join(each.reason for each in found.problems)}"
    return f"{not_followed} of {len(found.tables)} tables cannot be followed"
