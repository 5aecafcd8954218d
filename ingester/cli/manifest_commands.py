"""``ingester manifest …``: the options of its commands; :mod:`.manifest_tools` runs them.

Each takes a store's URL and optionally a namespace and a table; by default it covers all tables of
the store. No daemon is contacted, and a running daemon is not disturbed.
"""

from pathlib import Path
from typing import Annotated

import typer

from .command_options import Json, SomeNamespace, SomeTable

manifest_app = typer.Typer(help="Inspect, verify and clean up tables in a store, without a daemon.")

Url = Annotated[str, typer.Argument(metavar="URL", help="The store: s3://…, file://… or a folder.")]
Config = Annotated[
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
    config: Config = None,
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
    config: Config = None,
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
    config: Config = None,
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
    config: Config = None,
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
    config: Config = None,
    json: Json = False,
) -> None:
    """Delete what no retained version needs. Safe while daemons and readers run."""
    from .manifest_tools import chosen, run_clean_up

    flags = {"manifest.retain": retain, "manifest.orphan_grace": orphan_grace}
    run_clean_up(chosen(url, namespace, table, config, flags), dry_run, json)
