"""``python -m tests.readme.generated``: write tables of settings, errors and metrics into the docs.

Each page has hand-written text, and a generated table between two marks. The sources are the
structs of :mod:`ingester.config.settings` with the docstring below each field, the classes of
:mod:`ingester.errors` with their first paragraph (meaning) and second paragraph (what to do),
and the code that registers metrics.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin

import msgspec

from ingester.config import settings as settings_module
from ingester.config.settings import MemorySettings, Settings, range_of
from ingester.config.sources import known_keys, shown_values
from ingester.errors import ERRORS, IngesterError
from tests.readme.metrics_page import metrics_tables
from tests.readme.metrics_page import table as _table

DOCS = Path(__file__).resolve().parents[2] / "docs"
MARKED = re.compile(
    r"(?<=<!-- made from the code by `make docs`: do not edit -->\n).*?(?=<!-- end -->\n)", re.S
)
RAM = 8 * 1024**3


def with_table(page: str, table: str) -> str:
    """The page with the table between its marks replaced."""
    written, count = MARKED.subn(lambda _: f"\n{table}\n", page)
    assert count == 1, f"{count} tables that are made from the code"
    return written


def settings_table() -> str:
    """All settings: key, default, permitted values, meaning."""
    meanings = dict(_meanings())
    rows = [
        (f"`{key}`", default, _values(kind), meanings[key])
        for (key, kind), default in zip(known_keys().items(), _defaults(), strict=True)
    ]
    return _table(("key", "default", "values", "meaning"), rows)


def errors_table() -> str:
    """All codes: status, the command line's exit code, meaning, what to do."""
    rows = []
    for error, kind in ERRORS.items():
        if error is IngesterError:
            continue
        means, _, todo = _plain(inspect.getdoc(error) or "").partition("\n\n")
        rows.append((f"`{kind.code}`", kind.status, str(kind.exit_code), means, todo))
    return _table(("code", "gRPC status", "exit code", "what it means", "what to do"), rows)


def pages() -> Iterator[tuple[Path, str]]:
    """Each page's path and up-to-date text."""
    made = (
        ("settings.md", settings_table()),
        ("errors.md", errors_table()),
        ("metrics.md", metrics_tables()),
    )
    for name, table in made:
        page = DOCS / name
        yield page, with_table(page.read_text(), table)


def _defaults() -> list[str]:
    values = shown_values(Settings(id="host-name", memory=MemorySettings(limit=RAM // 2)))
    shown = {key: f"`{_text(value)}`" if value != "" else "" for key, value in values.items()}
    assert values["memory.low"] == "2GiB"
    # Defaults that the daemon determines itself.
    shown["id"] = "host name"
    shown["ack"] = '`disk`, or `store` with `wal.disk = "off"`'
    shown["store"] = "`file://<data_dir>/store`"
    shown["memory.limit"] = "half of RAM"
    shown["sql.memory"] = "an eighth of RAM"
    shown["memory.low"] = "50 % of `memory.limit`"
    shown["memory.high"] = "90 % of `memory.limit`"
    return list(shown.values())


def _values(kind: object) -> str:
    """The range or the choices of a setting's type; empty if any value is permitted."""
    if (allowed := range_of(kind)) is not None and math.isfinite(allowed.high):
        return f"{allowed.show(allowed.low)} to {allowed.show(allowed.high)}"
    if NoneType in get_args(kind):  # the daemon determines the default
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    return ""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _meanings() -> Iterator[tuple[str, str]]:
    """Each dotted key with the docstring below its field."""
    below = {
        node.name: dict(_below_fields(node))
        for node in ast.parse(inspect.getsource(settings_module)).body
        if isinstance(node, ast.ClassDef)
    }

    def of_struct(struct: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, str]]:
        for field in msgspec.structs.fields(struct):
            if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
                yield from of_struct(field.type, f"{prefix}{field.name}.")
            else:
                yield prefix + field.name, below[struct.__name__][field.name]

    return of_struct(Settings, "")


def _below_fields(struct: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in zip(struct.body, struct.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            yield field.target.id, _plain(inspect.cleandoc(str(below.value.value)))


def _plain(docstring: str) -> str:
    """A docstring as Markdown, with each paragraph on one line."""
    paragraphs = docstring.replace("``", "`").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def main() -> None:
    """Write the tables into their pages."""
    for page, text in pages():
        page.write_text(text)


if __name__ == "__main__":
    main()
