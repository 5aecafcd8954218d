"""The options of ``ingester manifest …``, ``publish``, ``compact`` and ``tokens …``.

They need no daemon. The first three take a store's URL and optionally a namespace and a table; by
default they cover all tables of the store. They do not disturb a running daemon. A running daemon
reads a changed token file.
"""

from pathlib import Path
from typing import Annotated

import typer

from .command_options import Config, Json, SomeNamespace, SomeTable
from .exits import USAGE, CommandFailed

manifest_app = typer.Typer(help="Inspect, verify and clean up tables in a store, without a daemon.")

Url = Annotated[str, typer.Argument(metavar="URL", help="The store: s3://…, file://… or a folder.")]
StoreConfig = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file with store_options. Environment: INGESTER_CONFIG."),
]
TableVersion = Annotated[
    int | None,
    typer.Option("--table-version", min=1, help="Generation of the table. Default: the current."),
]


@manifest_app.command()
def log(
    url: Url,
    namespace: SomeNamespace = None,
    table: SomeTable = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only this many of the newest versions.")
    ] = None,
    table_version: TableVersion = None,
    config: StoreConfig = None,
    json: Json = False,
) -> None:
    """Print the retained versions, newest first: writer, time and actions."""
    from .manifest_tools import chosen, print_log

    print_log(chosen(url, namespace, table, config, table_version=table_version), limit, json)


@manifest_app.command()
def show(
    url: Url,
    namespace: SomeNamespace = None,
    table: SomeTable = None,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="Default: the newest.")
    ] = None,
    table_version: TableVersion = None,
    config: StoreConfig = None,
    json: Json = False,
) -> None:
    """Print a version's contents: files, rows, columns, partitions, checkpoints and the writers'
    progress."""
    from .manifest_tools import chosen, print_state

    print_state(chosen(url, namespace, table, config, table_version=table_version), version, json)


@manifest_app.command()
def versions(
    url: Url,
    namespace: SomeNamespace = None,
    table: SomeTable = None,
    config: StoreConfig = None,
    json: Json = False,
) -> None:
    """Print the generations of each table: which is current, which push made it, which are kept."""
    from .manifest_tools import chosen, print_versions

    print_versions(chosen(url, namespace, table, config), json)


@manifest_app.command()
def verify(
    url: Url,
    namespace: SomeNamespace = None,
    table: SomeTable = None,
    data: Annotated[
        bool, typer.Option("--data", help="Also read the footer of every data file.")
    ] = False,
    table_version: TableVersion = None,
    config: StoreConfig = None,
    json: Json = False,
) -> None:
    """Read all retained versions. Exit code 1 if something is missing or damaged."""
    from .manifest_tools import chosen, print_verification

    tables = chosen(url, namespace, table, config, table_version=table_version)
    print_verification(tables, data, json)


@manifest_app.command()
def gc(
    url: Url,
    namespace: SomeNamespace = None,
    table: SomeTable = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be deleted.")
    ] = False,
    retain: Annotated[
        str | None, typer.Option("--retain", help="Overrides the setting manifest.retain.")
    ] = None,
    orphan_grace: Annotated[
        str | None,
        typer.Option("--orphan-grace", help="Overrides the setting manifest.orphan_grace."),
    ] = None,
    config: StoreConfig = None,
    json: Json = False,
) -> None:
    """Delete what no retained version needs. Safe while daemons and readers run.

    For a whole store also log objects of ingesters that do not come back, if their rows are all in
    files.
    """
    from .manifest_tools import chosen, run_clean_up

    flags = {"manifest.retain": retain, "manifest.orphan_grace": orphan_grace}
    run_clean_up(chosen(url, namespace, table, config, flags), dry_run, json)


def publish(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[on|off|status] URL [NAMESPACE [TABLE]]",
            help="on, off: whether daemons publish these tables. status: how far each one is"
            " published. Without a verb: publish now.",
            show_default=False,
        ),
    ],
    format: Annotated[
        list[str] | None,
        typer.Option(
            "--format", help="iceberg or delta; repeatable. Default: both, or the table's own."
        ),
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option(
            "--max-age",
            help="With on: age at which rows of these tables are flushed, if below"
            " persist.max_age.",
        ),
    ] = None,
    config: StoreConfig = None,
    json: Json = False,
) -> None:
    """Publish tables as Iceberg and Delta, for engines that do not know the manifest.

    Safe while daemons run. Exit code 1 if a table is not published as it should be."""
    from .publish import run_publish

    run_publish(words, format or (), max_age, config, json)


def compact(
    url: Url,
    namespace: SomeNamespace = None,
    table: SomeTable = None,
    target_file_bytes: Annotated[
        str, typer.Option("--target-file-bytes", metavar="SIZE", help="Size of the new files.")
    ] = "128MiB",
    filter_: Annotated[
        str | None,
        typer.Option(
            "--filter", help="Only files that may have such rows: \"time >= '2026-11-21'\"."
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Memory for the rows of a new file. Default: the setting memory.limit.",
        ),
    ] = None,
    store_option: Annotated[
        list[str] | None,
        typer.Option(
            "--store-option",
            metavar="NAME=VALUE",
            help="Option of the store, such as endpoint_url=…; for a secret env:NAME or file:PATH."
            " Repeatable.",
        ),
    ] = None,
    config: StoreConfig = None,
    json: Json = False,
) -> None:
    """Merge small files into few sorted ones. Safe while daemons write and readers read.

    Replaced files stay until no retained version lists them. Exit code 1 if something is left.
    """
    from ingester.config.units import parse_size
    from ingester.memory.heap_settings import choose_allocator, set_up_allocator

    choose_allocator()  # before pyarrow is imported
    from .compaction import run_compaction, store_options

    set_up_allocator()

    try:
        target = parse_size(target_file_bytes)
        if target < 1:
            raise ValueError("it must be at least 1")
    except ValueError as exc:
        raise CommandFailed(f"--target-file-bytes {target_file_bytes!r}: {exc}", USAGE) from exc
    flags = store_options(store_option or []) | {"memory.limit": memory}
    run_compaction(url, (namespace, table), (config, flags), target, filter_, json)


tokens_app = typer.Typer(help="Manage the token file of a daemon.")

File = Annotated[Path | None, typer.Option("--file", help="Token file. Default: auth.tokens.")]


@tokens_app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name of its holder, for logs.", show_default=False)],
    grant: Annotated[
        list[str],
        typer.Option(
            "--grant",
            metavar="NS:RIGHTS",
            help="Grant such as shop:read,write or *:admin; repeatable.",
        ),
    ],
    expires: Annotated[
        str | None, typer.Option("--expires", help="Validity such as 90d. Default: unlimited.")
    ] = None,
    file: File = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Create a token and print it once; the file stores only its hash.

    Rights are read, write, and admin, which includes both. Several tokens of one name can be valid
    at a time: to rotate, add a new one, distribute it, then revoke the old one.
    """
    from .tokens import add_token

    add_token(file, config, name, (grant, expires), json)


@tokens_app.command("list")
def list_(file: File = None, config: Config = None, json: Json = False) -> None:
    """List the tokens with their grants and state."""
    from .tokens import print_tokens

    print_tokens(file, config, json)


@tokens_app.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="Token id, as shown by list.")],
    file: File = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Revoke a token; running daemons refuse it within seconds, also in open streams."""
    from .tokens import revoke_token

    revoke_token(file, config, token, json)
