"""JSON objects in an array, or spread over several lines, as one object per line.

    [ {…}, {…} ]  ──▶  {…} ⏎ {…} ⏎

Streaming. Objects keep their text. Only blanks and commas may stand between them
(``tests/cli/test_text_inputs.py``).
"""

import codecs
import json
import re
from collections.abc import Iterable, Iterator

MAX_OBJECT_CHARACTERS = 64 * 1024**2  # the daemon's default for a whole batch
_NOT_BETWEEN = re.compile(r"[^ \t\r\n,]")
_LINE_ENDS = str.maketrans("\r\n", "  ")


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


def as_lines(chunks: Iterable[bytes], block_bytes: int) -> Iterator[bytes]:
    """The objects, one per line, in blocks of about ``block_bytes``. Raises NotObjects."""
    rows: list[bytes] = []
    size = 0
    for row in _objects(chunks):
        rows.append(row.translate(_LINE_ENDS).encode(errors="surrogateescape"))
        size += len(row)
        if size >= block_bytes:
            yield b"\n".join(rows)
            rows, size = [], 0
    if rows:
        yield b"\n".join(rows)


def _objects(chunks: Iterable[bytes]) -> Iterator[str]:
    find = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode
    text, at, count, why = "", 0, 0, ""
    brackets = ["[", "]"]  # of an array, still to come
    for chunk in codecs.iterdecode(chunks, "utf-8", "surrogateescape"):
        text, at = text[at:] + chunk, 0
        while found := _NOT_BETWEEN.search(text, at):
            mark, at = found[0], found.start()
            if brackets and mark == brackets[0] and not (mark == "[" and count):
                del brackets[0]
                at += 1
                continue
            if mark != "{" or not brackets:
                raise NotObjects(f"object {count:,} is not followed by an object")
            try:
                _, end = find(text, at)
            except json.JSONDecodeError as exc:
                why = exc.msg  # or it continues in the next chunk
                break
            except RecursionError:
                raise NotObjects(f"object {count + 1:,} is nested too deeply") from None
            yield text[at:end]
            at, count = end, count + 1
        else:
            at = len(text)
        if len(text) - at > MAX_OBJECT_CHARACTERS:
            break
    if at < len(text) or brackets == ["]"]:
        raise NotObjects(
            f"it ends inside the object after object {count:,}, or that one is malformed"
            f"{why and f': {why}'}"
        )
