"""Divides text into SQL statements, and names into their parts. Pure.

A semicolon ends a statement, unless it is in a text, a quoted name or a comment.
"""

import re
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
      (?P<comment> --[^\n\r]* )
    | (?P<quoted> [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
        | \$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$ )
    | (?P<open> [eE]?' | " | /\* | \$(?:[^\W\d]\w*)?\$ )
    | (?P<end> ; )
    | (?P<word> [\w$]+ | [^\s] )
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_NAME_PART = re.compile(r'"(?:[^"]|"")*"|[^."]+')


class Divided(NamedTuple):
    """Complete statements, without their semicolons, and the text after the last one.

    ``rest`` is empty if it has only spaces and comments.
    """

    statements: list[str]
    rest: str


def divided(text: str) -> Divided:
    """The statements in a text."""
    statements: list[str] = []
    start = at = 0
    has_code = False
    while (found := _TOKEN.search(text, at)) is not None:
        at = found.end()
        if found["open"] == "/*":
            end = _comment_end(text, at)
            if end is not None:
                at = end
                continue
        if found["open"] is not None:  # not closed
            return Divided(statements, text[start:])
        if found["end"] is not None:
            if has_code:
                statements.append(text[start : found.start()].strip())
            start, has_code = at, False
        elif found["comment"] is None:
            has_code = True
    return Divided(statements, text[start:] if has_code else "")


def _comment_end(text: str, at: int) -> int | None:
    """Where the comment that began before ``at`` ends. Comments nest."""
    depth = 1
    for edge in _COMMENT_EDGE.finditer(text, at):
        depth += 1 if edge[0] == "/*" else -1
        if not depth:
            return edge.end()
    return None


def name_parts(text: str) -> list[str]:
    """The parts of a name such as ``shop."My table"``."""
    return [
        part[1:-1].replace('""', '"') if part.startswith('"') else part
        for part in _NAME_PART.findall(text.strip())
    ]


def as_name(text: str) -> str:
    """A name as SQL writes it: quoted if it has to be."""
    if re.fullmatch(r"[a-z_][a-z0-9_]*", text):
        return text
    return '"' + text.replace('"', '""') + '"'
