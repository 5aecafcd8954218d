"""Arguments and options that several commands have. Imports no pyarrow."""

from typing import Annotated

import typer

from ingester.config.sources import endpoint as default_endpoint

ENDPOINT = default_endpoint()

Endpoint = Annotated[
    str, typer.Option("--endpoint", help="The daemon, grpc://HOST:PORT. [env: INGESTER_ENDPOINT]")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Namespace = Annotated[str, typer.Argument(help="The table's namespace.", show_default=False)]
TableName = Annotated[str, typer.Argument(help="The table.", show_default=False)]
