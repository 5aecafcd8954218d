"""``ingester manifest …``: the options; what the commands do is in :mod:`.manifest_tools`.

All of them take a store's URL and, if wanted, a namespace and a table; without them they go through
all tables of the store. No daemon is asked, and one that runs is not disturbed.
"""

from pathlib import Path
from typing import Annotated

import typer

from .command_options import Json

manifest_app = typer.Typer(help="Look at the versions of tables in a store, and clean them up.")

Url = Annotated[str, typer.Argument(metavar="URL", help="The store: s3://…, file://… or a folder.")]
Namespace = Annotated[str | None, typer.Argument(help="Default: all.", show_default=False)]
TableName = Annotated[str | None, typer.Argument(help="Default: all of it.", show_default=False)]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file, for store_options. Or INGESTER_CONFIG."),
]


TableVersion = Annotated[
    int | None,
    typer.Option(
        "--table-version", min=1, help="Of the table as a whole. Default: the one that counts."
    ),
]


@manifest_app.command()
def log(
    url: Url,
    namespace: Namespace = None,
    table: TableName = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only the newest so many versions.")
    ] = None,
    table_version: TableVersion = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Print the kept versions, the newest first: who made them, when, and what they did."""
    from .manifest_tools import chosen, print_log

    print_log(chosen(url, namespace, table, config, table_version=table_version), limit, json)


@manifest_app.command()
def show(
    url: Url,
    namespace: Namespace = None,
    table: TableName = None,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="Default: the newest.")
    ] = None,
    table_version: TableVersion = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Print what a version holds: files, rows, columns, partitions, checkpoints, and how far
    writers are."""
    from .manifest_tools import chosen, print_state

    print_state(chosen(url, namespace, table, config, table_version=table_version), version, json)


@manifest_app.command()
def versions(
    url: Url,
    namespace: Namespace = None,
    table: TableName = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Print the versions of tables as a whole: which counts, whose they are, what is kept."""
    from .manifest_tools import chosen, print_versions

    print_versions(chosen(url, namespace, table, config), json)


@manifest_app.command()
def verify(
    url: Url,
    namespace: Namespace = None,
    table: TableName = None,
    data: Annotated[
        bool, typer.Option("--data", help="Read the footer of every data file, too.")
    ] = False,
    table_version: TableVersion = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Read everything that is kept; exit 1 when something is missing or damaged."""
    from .manifest_tools import chosen, print_verification

    tables = chosen(url, namespace, table, config, table_version=table_version)
    print_verification(tables, data, json)


@manifest_app.command()
def gc(
    url: Url,
    namespace: Namespace = None,
    table: TableName = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    retain: Annotated[
        str | None, typer.Option("--retain", help="Instead of the setting manifest.retain.")
    ] = None,
    orphan_grace: Annotated[
        str | None, typer.Option("--orphan-grace", help="Instead of manifest.orphan_grace.")
    ] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Delete what no kept version needs. Daemons and readers may go on meanwhile."""
    from .manifest_tools import chosen, run_clean_up

    flags = {"manifest.retain": retain, "manifest.orphan_grace": orphan_grace}
    run_clean_up(chosen(url, namespace, table, config, flags), dry_run, json)
