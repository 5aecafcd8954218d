"""``ingester tokens add | list | revoke``: their options.

What they do is in :mod:`.tokens`, which is imported when a command runs.
"""

from pathlib import Path
from typing import Annotated

import typer

from .command_options import Config, Json

tokens_app = typer.Typer(help="The tokens by which callers of a daemon are known.")

File = Annotated[
    Path | None, typer.Option("--file", help="The file of tokens; default: auth.tokens.")
]


@tokens_app.command()
def add(
    name: Annotated[str, typer.Argument(help="Whose it is, for logs.", show_default=False)],
    grant: Annotated[
        list[str],
        typer.Option(
            "--grant",
            metavar="NS:RIGHTS",
            help="As shop:read,write or *:admin; several of them may be given.",
        ),
    ],
    expires: Annotated[
        str | None, typer.Option("--expires", help="How long it is valid, as 90d; default: ever.")
    ] = None,
    file: File = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Make a token and print it, once: the file keeps its hash alone.

    Rights are read, write, and admin, which has both. Several tokens of one name may be valid at a
    time: add the next one, hand it out, then revoke the old one.
    """
    from .tokens import add_token

    add_token(file, config, name, (grant, expires), json)


@tokens_app.command("list")
def list_(file: File = None, config: Config = None, json: Json = False) -> None:
    """List the tokens, with their grants and whether they are valid."""
    from .tokens import print_tokens

    print_tokens(file, config, json)


@tokens_app.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as list shows it.")],
    file: File = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Revoke a token: a daemon refuses it within some seconds, in open streams, too."""
    from .tokens import revoke_token

    revoke_token(file, config, token, json)
