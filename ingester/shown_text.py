"""Escaping foreign text for terminals, log lines and errors.

*Hidden* characters are shown by their code, and new names may not contain any
(tests/schema/test_shown_text.py):

    C0, DEL, C1    move the cursor, set titles, fake input, end a line
    U+202A … 202E, U+2066 … 2069, U+200E, 200F, 061C   change the text's direction
    U+200B, 2060 … 2064, 00AD, FEFF, tags, …   have no width: two names look alike
    U+2028, 2029   end a line; surrogates are not Unicode text

The joiners U+200C and U+200D are not hidden, because scripts and emoji need them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

SHOWN_CHARS = 128
"""Names in errors are cut to this length."""
_HIDDEN_RANGES = (
    (0x00, 0x1F),
    (0x7F, 0x9F),
    (0xAD, 0xAD),
    (0x061C, 0x061C),
    (0x180E, 0x180E),
    (0x200B, 0x200B),
    (0x200E, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0xD800, 0xDFFF),
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),
    (0xE0000, 0xE0FFF),
)
_HIDDEN = re.compile("[" + "".join(f"{chr(a)}-{chr(b)}" for a, b in _HIDDEN_RANGES) + "]")


def has_hidden(text: str) -> bool:
    """Return whether a text contains a hidden character."""
    # Fast path: `isprintable` is in C and most texts are printable.
    return not text.isprintable() and _HIDDEN.search(text) is not None


def escaped(text: str) -> str:
    r"""Return the text with hidden characters escaped: ``\x1b``, ``\n``, ``\u202e``."""
    return text if text.isprintable() else _HIDDEN.sub(_escape, text)


def escaped_lines(text: str) -> str:
    """As :func:`escaped`, but newlines and tabs stay."""
    if text.isprintable():
        return text
    return _HIDDEN.sub(lambda found: found[0] if found[0] in "\n\t" else _escape(found), text)


def escaped_json(document: str) -> str:
    r"""Return a JSON document with hidden characters escaped as ``\u`` and four digits.

    Newlines outside of its strings stay.
    """
    if document.isprintable():
        return document
    return _HIDDEN.sub(lambda found: found[0] if found[0] == "\n" else _units(found[0]), document)


def shown_name(name: object) -> str:
    """Return a name in quotes, escaped, and cut if it is very long."""
    text = name if isinstance(name, str) else repr(name)
    kept = repr(text[:SHOWN_CHARS])
    return kept if len(text) <= SHOWN_CHARS else f"{kept}… ({len(text):,} characters)"


def shown_names(names: Iterable[str], most: int = 20) -> str:
    """Return names as :func:`shown_name` does, and the number of those beyond ``most``."""
    every = list(names)
    shown = ", ".join(map(shown_name, every[:most]))
    return shown if len(every) <= most else f"{shown} and {len(every) - most:,} more"


def _units(character: str) -> str:
    """Return the JSON escape of a character: its UTF-16 code units."""
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
