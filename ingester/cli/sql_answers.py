"""SQL statements in a text, and their answers, printed or written to a file."""

import re
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from ingester.client import Client
from ingester.shown_text import shown_names

from .exits import CommandFailed
from .printing import print_line, say
from .query import write_answer

PLAN = ["explain_key", "explain_value"]
"""The columns of EXPLAIN."""
_IGNORED = r"--[^\n]*|/\*.*?\*/|\s"
_STATEMENT = re.compile(
    rf"""(?>(?:{_IGNORED}
    | [eE]'(?:[^'\\]|\\.|'')*' | '[^']*' | "[^"]*" | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
    | (?!/\*|\$\w*\$|--|['";]). )*);""",
    re.VERBOSE | re.DOTALL,
)


class SqlAnswers(NamedTuple):
    """How statements are run, and where their answers go."""

    namespace: str | None
    format: str
    output: Path | None = None
    allow_missing: bool = False

    def print(self, client: Client, statement: str) -> int:
        """Print the answer of one statement, or write it to ``output``; the number of rows."""
        with client.sql_stream(
            statement,
            namespace=self.namespace,
            missing="allow" if self.allow_missing else "error",
        ) as stream:
            if stream.missing:
                say(f"rows that only these daemons hold are missing: {', '.join(stream.missing)}")
            names = stream.schema.names
            if self.format == "table" and names == PLAN:
                plan = [text for batch in stream for text in batch.column(1).to_pylist()]
                for line in "\n".join(plan).splitlines():
                    print_line(line)
                return len(plan)
            if self.format == "jsonl" and (twice := {n for n in names if names.count(n) > 1}):
                raise CommandFailed(
                    f"two columns have the name {shown_names(sorted(twice))}, which a JSON object"
                    " cannot have: rename one with AS"
                )
            more = "another --format prints all"
            try:
                return write_answer(stream.schema, stream, self.format, self.output, more=more)
            except pa.ArrowNotImplementedError as exc:
                raise CommandFailed(f"{exc}: cast the column, or use another format") from exc


def divided(text: str) -> tuple[list[str], str]:
    """The complete statements in a text, without their semicolons, and the text after the last.

    A semicolon ends a statement, unless it is in a text, a quoted name or a comment.
    """
    statements, at = list[str](), 0
    while (found := _STATEMENT.match(text, at)) is not None:
        at = found.end()
        statements.append(found[0][:-1].strip())
    return list(filter(_has_code, statements)), text[at:] if _has_code(text[at:]) else ""


def _has_code(text: str) -> bool:
    return re.sub(_IGNORED, "", text, flags=re.DOTALL) != ""
