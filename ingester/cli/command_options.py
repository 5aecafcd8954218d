"""The arguments and options that several commands have; pyarrow is not imported here."""

from pathlib import Path
from typing import Annotated

import typer

from ingester.config.sources import endpoint as default_endpoint

ENDPOINT = default_endpoint()

Endpoint = Annotated[
    str, typer.Option("--endpoint", help="The daemon, grpc://HOST:PORT. [env: INGESTER_ENDPOINT]")
]
Config = Annotated[Path | None, typer.Option("--config", help="TOML file. [env: INGESTER_CONFIG]")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Namespace = Annotated[str, typer.Argument(help="The table's namespace.", show_default=False)]
TableName = Annotated[str, typer.Argument(help="The table.", show_default=False)]
