"""``ingester tokens add | list | revoke``: their options.

The commands are in :mod:`.tokens`, which is imported when one runs.
"""

from pathlib import Path
from typing import Annotated

import typer

from .command_options import Config, Json

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
