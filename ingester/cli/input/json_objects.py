"""JSON objects in an array, or spread over several lines, as one object per line.

    [ {…}, {…} ]  ──▶  {…} ⏎ {…} ⏎

Streaming. Only quotes and brackets are interpreted, so numbers keep their text. Only blanks and
commas may stand between objects (``tests/cli/test_text_inputs.py``).
"""

import json
import re
from collections.abc import Iterable, Iterator

# A string; a quote that begins one that does not end yet; a bracket.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|"|[\[\]{}]', re.DOTALL)
_OPENING, _CLOSING = (b"[", b"{"), (b"]", b"}")
_BETWEEN = b" \t\r\n,"
_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")


MAX_DEPTH = 200
"""Parsers recurse, so no value is nested more deeply. No table's type is either."""


class NotObjects(Exception):
    """The input has something other than objects, or ends inside one."""


def is_spread(head: bytes) -> bool:
    """Whether a text with this beginning is an array, or has objects over several lines."""
    head = head.lstrip()
    if head.startswith(b"["):
        return True
    first = head.split(b"\n", 1)[0].strip()
    if not first.startswith(b"{"):
        return False
    try:
        json.loads(first)
    except json.JSONDecodeError as exc:
        return exc.pos >= len(first)
    except (ValueError, RecursionError):
        return False
    return False


def deep_line(text: bytes) -> int | None:
    """The number of the first line, from 1, that is nested more than :data:`MAX_DEPTH` levels."""
    for number, line in enumerate(text.split(b"\n"), 1):
        if line.count(b"[") + line.count(b"{") <= MAX_DEPTH:
            continue
        depth = 0
        for token in _TOKEN.finditer(line):
            depth += (token[0] in _OPENING) - (token[0] in _CLOSING)
            if depth > MAX_DEPTH:
                return number
    return None


def as_lines(chunks: Iterable[bytes], block_bytes: int) -> Iterator[bytes]:
    """The objects, one per line, in blocks of about ``block_bytes``. Raises NotObjects."""
    rows: list[bytes] = []
    size = 0
    for row in _objects(chunks):
        rows.append(row.translate(_LINE_ENDS))
        size += len(row)
        if size >= block_bytes:
            yield b"\n".join(rows)
            rows, size = [], 0
    if rows:
        yield b"\n".join(rows)


def _objects(chunks: Iterable[bytes]) -> Iterator[bytes]:
    text, at, start, depth, count = b"", 0, 0, 0, 0
    level: int | None = None  # nesting depth of the objects
    ended = False
    for chunk in chunks:
        # ``start`` is the beginning of the open object, or the end of the last one.
        text, at, start = text[start:] + chunk, at - start, 0
        for token in _TOKEN.finditer(text, at):
            mark, at = token[0], token.start()
            if mark == b'"':
                break  # the rest of the string comes with the next chunk
            at = token.end()
            if level is None:
                level = 1 if mark == b"[" else 0
                depth, start = (1, _checked(text, 0, at - 1, 0) + 1) if level else (0, 0)
                if level:
                    continue
            if mark == b"{" and depth == level and not ended:
                start = _checked(text, start, at - 1, count)
            elif mark == b"]" and depth == level == 1:
                start, ended = _checked(text, start, at - 1, count) + 1, True
            elif depth <= level:
                raise NotObjects(f"object {count:,} is not followed by an object")
            depth += (mark in _OPENING) - (mark in _CLOSING)
            if mark == b"}" and depth == level:
                count += 1
                yield text[start:at]
                start = at
        else:
            at = len(text)
    if depth:
        raise NotObjects(f"it ends inside the object after object {count:,}")
    _checked(text, start, len(text), count)


def _checked(text: bytes, start: int, end: int, count: int) -> int:
    """``end``, if only blanks and commas stand before it."""
    if text[start:end].strip(_BETWEEN):
        raise NotObjects(f"object {count:,} is not followed by an object")
    return end
