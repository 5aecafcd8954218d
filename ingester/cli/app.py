"""The commands and their options; what they do is in the modules beside this one.

Those are imported when a command runs, so that ``ingester --help`` does not wait for pyarrow.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from ingester import __version__

from .command_options import (
    ENDPOINT,
    Config,
    Endpoint,
    Filter,
    Insecure,
    Json,
    Namespace,
    TableName,
    asks_daemon,
)
from .daemon_commands import log_level, tail
from .exits import USAGE, CommandFailed, end_on_signals
from .follow_commands import follow
from .manifest_commands import manifest_app
from .push_commands import controller, pushes_app
from .replication_commands import replication_status, replication_verify
from .token_commands import tokens_app
from .write_commands import create, write

app = typer.Typer(
    name="ingester",
    help="Rows in over gRPC, durable and readable at once, Parquet out to object storage.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# They run a loop or other processes, and end those on a signal.
_OWN_SIGNALS = ("serve", "demo", "replicate", "follow", "tail", "controller", "wal")

wal_app = typer.Typer(help="Look at a daemon's log and mend it, while the daemon is stopped.")
replicate_app = typer.Typer(help="Follow the changes of another database's tables.")
app.add_typer(wal_app, name="wal", no_args_is_help=True)
app.add_typer(manifest_app, name="manifest", no_args_is_help=True)
app.add_typer(pushes_app, name="pushes", no_args_is_help=True)
app.add_typer(tokens_app, name="tokens", no_args_is_help=True)
app.add_typer(replicate_app, name="replicate", no_args_is_help=True)

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Log, spill and lock.")]
Store = Annotated[str | None, typer.Option("--store", help="Object storage URL.")]
Flight = Annotated[str | None, typer.Option("--flight", help="HOST:PORT for gRPC.")]
Http = Annotated[str | None, typer.Option("--http", help="HOST:PORT for HTTP.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, as --set persist.max_age=2s."),
]
WalDir = Annotated[Path, typer.Argument(help="The data directory, or its wal folder.")]


def _flags(
    data_dir: Path | None, store: str | None, flight: str | None, http: str | None, more: Any
) -> dict[str, object]:
    flags: dict[str, object] = {}
    for assignment in more or []:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise CommandFailed(f"--set {assignment!r} is not KEY=VALUE", USAGE)
        flags[key.strip()] = value
    named = {"data_dir": data_dir, "store": store, "flight.listen": flight, "http.listen": http}
    return flags | {key: value for key, value in named.items() if value is not None}


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    if context.invoked_subcommand not in _OWN_SIGNALS:
        end_on_signals()


@app.command()
def serve(
    config: Config = None,
    data_dir: DataDir = None,
    store: Store = None,
    flight: Flight = None,
    http: Http = None,
    insecure: Insecure = False,
    adopt: Annotated[
        list[str] | None,
        typer.Option(
            "--adopt",
            metavar="DIR",
            help="Another daemon's data directory: what it had is brought in when it is gone.",
        ),
    ] = None,
    accept_lost_log: Annotated[
        bool,
        typer.Option(
            "--accept-lost-log", help="Start although the last epoch's log is lost for good."
        ),
    ] = False,
    accept_other_store: Annotated[
        bool,
        typer.Option(
            "--accept-other-store", help="Start with a store that was replaced or restored."
        ),
    ] = False,
    set_: Set = None,
) -> None:
    """Run the daemon until SIGTERM. Prints one JSON line when it accepts writes."""
    from .serve import serve as run

    said = {
        "insecure": insecure,
        "recovery.accept_lost_log": accept_lost_log,
        "recovery.accept_other_store": accept_other_store,
    }
    flags = _flags(data_dir, store, flight, http, set_)
    if adopt:
        flags["recovery.adopt"] = adopt
    run(flags | {key: True for key, is_said in said.items() if is_said}, config)


@app.command()
def config(
    config: Config = None,
    data_dir: DataDir = None,
    store: Store = None,
    flight: Flight = None,
    http: Http = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Print the effective settings and where each came from."""
    from .serve import print_settings

    print_settings(_flags(data_dir, store, flight, http, set_), config, json)


app.command()(asks_daemon(write))
app.command()(asks_daemon(create))
app.command()(asks_daemon(follow))
app.command()(asks_daemon(tail))
app.command()(controller)


@app.command()
@asks_daemon
def query(
    namespace: Namespace,
    table: TableName,
    columns: Annotated[
        str | None, typer.Option("--columns", help='a,b or a,"b,c"; default all.')
    ] = None,
    filter_: Filter = None,
    limit: Annotated[int | None, typer.Option("--limit", min=0, help="Rows at most.")] = None,
    version: Annotated[
        int | None, typer.Option("--version", help="Exactly this manifest version's files.")
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="table, csv, jsonl, arrow or parquet; default: by --output."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Written whole or not at all.")
    ] = None,
    allow_missing: Annotated[
        bool,
        typer.Option(
            "--allow-missing", help="Of several daemons, answer without those that are away."
        ),
    ] = False,
    endpoint: Endpoint = ENDPOINT,
    json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl.")] = False,
) -> None:
    """Print rows: everything acknowledged before the call is among them.

    CSV and JSON lines say every value so that write reads the same again: times in ISO 8601, those
    with a zone in UTC; all digits of decimals; bytes in base64; NaN and Infinity as such; lists,
    structs and maps (as key and value) in JSON. In CSV null is nothing, and text is in quotes.
    """
    from .query import QueryArguments, run_query

    arguments = QueryArguments(
        namespace=namespace,
        table=table,
        columns=columns,
        filter=filter_,
        limit=limit,
        version=version,
        allow_missing=allow_missing,
    )
    run_query(endpoint, arguments, format_ or ("jsonl" if json else None), output)


@app.command()
@asks_daemon
def tables(endpoint: Endpoint = ENDPOINT, json: Json = False) -> None:
    """List the tables with what they have in memory and in files."""
    from .status import print_tables

    print_tables(endpoint, json)


@app.command()
@asks_daemon
def status(
    seconds: Annotated[
        float | None, typer.Argument(help="With --watch: between two looks; 2 by default.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew until Ctrl-C.")] = False,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Show what the daemon is doing, alarms first."""
    if watch:
        from .status_watch import watch_status

        watch_status(endpoint, seconds, json)
        return
    if seconds is not None:
        raise CommandFailed("SECONDS need --watch before them", USAGE)
    from .status_of_many import print_status_of_each

    print_status_of_each(endpoint, json)


@app.command()
@asks_daemon
def checkpoints(
    namespace: Annotated[str | None, typer.Argument(help="Default: all.")] = None,
    table: Annotated[str | None, typer.Argument(help="Default: all of it.")] = None,
    delete: Annotated[
        str | None,
        typer.Option("--delete", metavar="PARTITION", help="Delete the table's one of this name."),
    ] = None,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """List the states that sources keep with their rows; --delete forgets one of a table."""
    from .checkpoints import delete_checkpoint, print_checkpoints

    if delete is None:
        print_checkpoints(endpoint, namespace, table, json)
    elif namespace is None or table is None:
        raise CommandFailed("--delete PARTITION needs a NAMESPACE and a TABLE before it", USAGE)
    else:
        delete_checkpoint(endpoint, (namespace, table), delete, json)


app.command()(asks_daemon(log_level))


@app.command()
@asks_daemon
def persist(
    namespace: Annotated[str | None, typer.Argument(help="Default: all.")] = None,
    table: Annotated[str | None, typer.Argument(help="Default: all of it.")] = None,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait.")] = "60s",
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Put everything acknowledged so far into object storage, and wait for it."""
    from .status import run_persist

    run_persist(endpoint, (namespace, table), timeout, json)


@app.command()
@asks_daemon
def drain(
    wait: Annotated[bool, typer.Option("--wait", help="Until everything is in files.")] = False,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait.")] = "5m",
    undo: Annotated[bool, typer.Option("--undo", help="Take writes again.")] = False,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Have the daemon take no more writes and put everything into files, before it is stopped."""
    from .drain import run_drain

    run_drain(endpoint, timeout, wait=wait, undo=undo, as_json=json)


@wal_app.command()
def inspect(directory: WalDir, json: Json = False) -> None:
    """Print what each segment holds. Changes nothing."""
    from .wal_tools import print_segments

    print_segments(directory, json)


@wal_app.command()
def verify(directory: WalDir, json: Json = False) -> None:
    """Print everything a start would stop at or cut; exit 1 when it would stop. Changes nothing."""
    from .wal_tools import print_findings

    print_findings(directory, json)


@wal_app.command()
def repair(directory: WalDir, json: Json = False) -> None:
    """Move damaged parts aside so that the daemon starts; print what was saved and lost."""
    from .wal_tools import run_repair

    run_repair(directory, json)


@wal_app.command()
def adopt(
    directory: WalDir,
    config: Config = None,
    store: Store = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Bring what a fenced or dead daemon had acknowledged into the store, each row once."""
    from .wal_tools import run_adopt

    run_adopt(directory, _flags(None, store, None, None, set_), config, json)


@replicate_app.callback()
def _replicate() -> None:
    """Follow the changes of another database's tables."""


replicate_app.command("status")(asks_daemon(replication_status))
replicate_app.command("verify")(asks_daemon(replication_verify))


@replicate_app.command()
@asks_daemon
def postgres(
    dsn: Annotated[str, typer.Argument(help="As psql takes it; or env:NAME, file:PATH.")],
    namespace: Annotated[str, typer.Argument(help="Where its tables go.", show_default=False)],
    tables: Annotated[str, typer.Option("--tables", help="a,b,schema.c; default: all.")] = "",
    publication: Annotated[
        str, typer.Option("--publication", help="Made unless it is there.")
    ] = "ingester",
    slot: Annotated[str, typer.Option("--slot", help="Made unless it is there.")] = "ingester",
    origin: Annotated[
        str, typer.Option("--origin", help="Who writes, for the daemon; default: of the slot.")
    ] = "",
    rename: Annotated[
        list[str] | None, typer.Option("--rename", help="public.t=orders or public.t.col=name.")
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--values",
            help="public.t.col=null or =text: what becomes of values that no type here holds.",
        ),
    ] = None,
    on_removed: Annotated[
        str, typer.Option("--on-removed", help="keep or empty a table that the source has no more.")
    ] = "keep",
    resync: Annotated[
        list[str] | None, typer.Option("--resync", help="A table that is copied anew.")
    ] = None,
    resync_all: Annotated[
        bool, typer.Option("--resync-all", help="Make the slot anew, and copy all tables.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Say what can be followed, and change nothing.")
    ] = False,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Copy PostgreSQL's tables, then follow their changes until SIGINT or SIGTERM.

    Needs wal_level = logical and a primary key on each table. Start it again and it goes on.
    """
    from .replicate import run_postgres

    options = {
        "tables": tables,
        "publication": publication,
        "slot": slot,
        "origin": origin,
        "rename": rename or [],
        "values": values or [],
        "on_removed": on_removed,
        "resync": resync or [],
        "resync_all": resync_all,
    }
    run_postgres(dsn, namespace, options, None if check else endpoint, json)


@app.command()
def demo(
    rows: Annotated[
        int | None, typer.Option("--rows", min=1, help="Only the first so many flights.")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="An empty folder, kept; default: one that is removed."),
    ] = None,
    writers: Annotated[int, typer.Option("--writers", min=1, help="Per table.")] = 4,
    batch_rows: Annotated[int, typer.Option("--batch-rows", min=1, help="Per operation.")] = 500,
    json: Json = False,
) -> None:
    """Run the whole road once on real rows, and check every number."""
    from .serve import demo as run

    run(rows=rows, data_dir=data_dir, writers=writers, batch_rows=batch_rows, json=json)
