"""The command-line application: its commands, and the options of those without a module of options.

What a command does is in a module that is imported when it runs, so that ``ingester --help`` does
not wait for pyarrow.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ingester import __version__

from .command_options import (
    ENDPOINT,
    Ack,
    Config,
    Endpoint,
    Insecure,
    Json,
    ack_level,
    asks_daemon,
)
from .daemon_commands import drain, log_level, persist, status
from .data_commands import checkpoints, create, follow, query, tables, tail, write
from .exits import USAGE, CommandFailed, end_on_signals, signals_so_far
from .offline_commands import compact, manifest_app, publish, tokens_app
from .push_commands import controller, pushes_app
from .replication_commands import replication_status, replication_verify
from .sql_commands import sql

if TYPE_CHECKING:
    from .wal_tools import LogTools

app = typer.Typer(
    name="ingester",
    help="Streaming ingester: rows over gRPC, durable and readable at once, into Parquet files in"
    " object storage.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# These run a loop or child processes and handle signals themselves.
_OWN_SIGNALS = ("serve", "demo", "replicate", "follow", "tail", "controller", "wal", "sql")

wal_app = typer.Typer(help="Inspect, repair and adopt the log of a stopped daemon.")
replicate_app = typer.Typer(help="Replicate tables of another database.")
app.add_typer(wal_app, name="wal", no_args_is_help=True)
app.add_typer(manifest_app, name="manifest", no_args_is_help=True)
app.add_typer(pushes_app, name="pushes", no_args_is_help=True)
app.add_typer(tokens_app, name="tokens", no_args_is_help=True)
app.add_typer(replicate_app, name="replicate", no_args_is_help=True)

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of the log, spill files and lock.")
]
Store = Annotated[str | None, typer.Option("--store", help="Object storage URL.")]
Flight = Annotated[
    str | None, typer.Option("--flight", metavar="HOST:PORT", help="Address for gRPC.")
]
Http = Annotated[str | None, typer.Option("--http", metavar="HOST:PORT", help="Address for HTTP.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting, such as persist.max_age=2s. Repeatable."
    ),
]
WalDir = Annotated[
    Path | None,
    typer.Argument(help="The data directory, or its wal folder.", show_default=False),
]
FromStore = Annotated[
    str | None,
    typer.Option(
        "--from-store",
        metavar="ID",
        help="Instead of DIRECTORY: the log objects of this ingester in the object store.",
    ),
]


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
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
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
            metavar="DIR|store:ID",
            help="Data directory of another daemon, or its log in the store: adopt it once that"
            " daemon has stopped. Repeatable.",
        ),
    ] = None,
    accept_lost_log: Annotated[
        bool,
        typer.Option(
            "--accept-lost-log", help="Start even though the last epoch's log is lost for good."
        ),
    ] = False,
    accept_other_store: Annotated[
        bool,
        typer.Option(
            "--accept-other-store",
            help="Start even though the store was replaced or restored from a backup.",
        ),
    ] = False,
    set_: Set = None,
) -> None:
    """Run the daemon until SIGTERM. Prints one JSON line once it accepts writes."""
    from .serve import serve as run

    switches = {
        "insecure": insecure,
        "recovery.accept_lost_log": accept_lost_log,
        "recovery.accept_other_store": accept_other_store,
    }
    flags = _flags(data_dir, store, flight, http, set_)
    if adopt:
        flags["recovery.adopt"] = adopt
    run(flags | {key: True for key, is_on in switches.items() if is_on}, config)


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
    """Print the effective settings and the source of each."""
    from .serve import print_settings

    print_settings(_flags(data_dir, store, flight, http, set_), config, json)


_OF_A_DAEMON: tuple[Callable[..., None], ...] = (
    write, create, query, sql, tables, tail, follow, status, persist, drain, checkpoints, log_level
)  # fmt: skip
for _command in _OF_A_DAEMON:
    app.command()(asks_daemon(_command))
app.command()(controller)
app.command()(publish)
app.command()(compact)


def _log_tools(
    directory: Path | None, ingester_id: str | None, flags: dict[str, object], file: Path | None
) -> "LogTools":
    """The log of a command: that of a directory, or an ingester's in the store."""
    if directory is not None and ingester_id is None:
        from .wal_tools import FolderTools

        return FolderTools(directory, flags, file)
    if directory is None and ingester_id is not None:
        from .store_log_tools import StoreLogTools

        return StoreLogTools(ingester_id, flags, file)
    raise CommandFailed("give a data directory, or --from-store ID", USAGE)


@wal_app.command()
def inspect(
    directory: WalDir = None,
    from_store: FromStore = None,
    config: Config = None,
    store: Store = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Print the contents of each segment or log object. Read-only."""
    _log_tools(directory, from_store, _flags(None, store, None, None, set_), config).inspect(json)


@wal_app.command()
def verify(
    directory: WalDir = None,
    from_store: FromStore = None,
    config: Config = None,
    store: Store = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Print damage and incomplete records. Read-only. Exit code 1 if the daemon would refuse to
    start."""
    _log_tools(directory, from_store, _flags(None, store, None, None, set_), config).verify(json)


@wal_app.command()
def repair(
    directory: WalDir = None,
    from_store: FromStore = None,
    config: Config = None,
    store: Store = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Move damaged parts aside so that the daemon starts; print what was saved and lost."""
    _log_tools(directory, from_store, _flags(None, store, None, None, set_), config).repair(json)


@wal_app.command()
def adopt(
    directory: WalDir = None,
    from_store: FromStore = None,
    config: Config = None,
    store: Store = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Commit the acknowledged rows of a fenced or dead daemon to the store, each row once.

    With --from-store a daemon of that id that still runs is fenced and ends with exit code 6.
    """
    _log_tools(directory, from_store, _flags(None, store, None, None, set_), config).adopt(json)


@replicate_app.callback()
def _replicate() -> None:
    """Replicate tables of another database."""


replicate_app.command("status")(asks_daemon(replication_status))
replicate_app.command("verify")(asks_daemon(replication_verify))


@replicate_app.command()
@asks_daemon
def postgres(
    dsn: Annotated[
        str, typer.Argument(help="Connection string as for psql, or env:NAME or file:PATH.")
    ],
    namespace: Annotated[str, typer.Argument(help="Target namespace.", show_default=False)],
    tables: Annotated[
        str, typer.Option("--tables", help="Tables to copy: a,b,schema.c. Default: all.")
    ] = "",
    publication: Annotated[
        str, typer.Option("--publication", help="Publication; created if missing.")
    ] = "ingester",
    slot: Annotated[
        str, typer.Option("--slot", help="Replication slot; created if missing.")
    ] = "ingester",
    origin: Annotated[
        str, typer.Option("--origin", help="Origin at the daemon. Default: derived from the slot.")
    ] = "",
    rename: Annotated[
        list[str] | None,
        typer.Option(
            "--rename",
            help="Rename a table or column: public.t=orders, public.t.col=name. Repeatable.",
        ),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--values",
            help="Replace values that no type here can hold: public.t.col=null or"
            " public.t.col=text. Repeatable.",
        ),
    ] = None,
    on_removed: Annotated[
        str,
        typer.Option("--on-removed", help="Keep or empty a table that was dropped at the source."),
    ] = "keep",
    resync: Annotated[
        list[str] | None, typer.Option("--resync", help="Copy this table again. Repeatable.")
    ] = None,
    resync_all: Annotated[
        bool, typer.Option("--resync-all", help="Recreate the slot and copy all tables again.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Read on after a stop because the server crashed.")
    ] = False,
    ack: Ack = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Only report which tables can be replicated. Read-only."),
    ] = False,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Copy PostgreSQL's tables, then replicate their changes until SIGINT or SIGTERM.

    Needs wal_level = logical and a primary key on each table. After a restart it resumes where it
    stopped.
    """
    # First: the imports below take long, and a signal meanwhile must end the command in order too.
    stopped = () if check else signals_so_far()
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
        "resume": resume,
        "ack": ack_level(ack),
    }
    run_postgres(dsn, namespace, options, None if check else endpoint, json, stopped)


@app.command()
def demo(
    rows: Annotated[
        int | None, typer.Option("--rows", min=1, help="Number of flights. Default: all.")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", help="Empty folder to use and keep. Default: a temporary folder."
        ),
    ] = None,
    writers: Annotated[int, typer.Option("--writers", min=1, help="Writers per table.")] = 2,
    batch_rows: Annotated[int, typer.Option("--batch-rows", min=1, help="Rows per batch.")] = 2_000,
    json: Json = False,
) -> None:
    """Stream real rows through a daemon into files, read them with Spark, compare all totals."""
    from .serve import demo as run

    run(rows=rows, data_dir=data_dir, writers=writers, batch_rows=batch_rows, json=json)
