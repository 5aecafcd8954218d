"""``ingester replicate``: the options; what it does is in :mod:`ingester.cli.replicate`."""

from typing import Annotated

import typer

from ingester.config.sources import endpoint as default_endpoint

replicate_app = typer.Typer(help="Follow the changes of another database's tables.")


@replicate_app.callback()
def _root() -> None:
    """Follow the changes of another database's tables."""


@replicate_app.command()
def postgres(
    dsn: Annotated[str, typer.Argument(help="The database, as psql takes it.")],
    namespace: Annotated[str, typer.Argument(help="Where its tables go.", show_default=False)],
    tables: Annotated[
        str, typer.Option("--tables", help="a,b,schema.c; default: all. Only where it is made.")
    ] = "",
    publication: Annotated[
        str, typer.Option("--publication", help="Made unless it is there.")
    ] = "ingester",
    slot: Annotated[str, typer.Option("--slot", help="Made unless it is there.")] = "ingester",
    origin: Annotated[str, typer.Option("--origin", help="Who writes, for the daemon.")] = "",
    endpoint: Annotated[
        str,
        typer.Option("--endpoint", help="The daemon, grpc://HOST:PORT. [env: INGESTER_ENDPOINT]"),
    ] = default_endpoint(),
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy PostgreSQL's tables once, then follow their changes until SIGINT or SIGTERM.

    Needs wal_level = logical and a primary key on each table. Start it again and it goes on.
    """
    from .replicate import follow_postgres

    names = [name.strip() for name in tables.split(",") if name.strip()]
    follow_postgres(dsn, namespace, names, (publication, slot, origin), endpoint, json)
