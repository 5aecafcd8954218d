"""Text of others as people may be shown it: in a terminal, a log line, an error.

Law of this file: pure. What a terminal takes for an order, what turns the direction of the text
after it, and what nobody sees is *hidden*. It is shown by its number; and no new name has any.

    C0, DEL, C1    move the cursor, set titles, answer as if somebody typed, end a line
    U+202A … 202E, U+2066 … 2069, U+200E, 200F, 061C   directions: what is read is not what is there
    U+200B, 2060 … 2064, 00AD, FEFF, tags, …   no width: two names that look alike
    U+2028, 2029   ends of lines; surrogates: no Unicode

The two joiners, U+200C and U+200D, are not hidden: scripts and emoji are written with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

SHOWN_CHARS = 128
"""A name in an error is cut to so many characters."""
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
    """Whether a text has a character that is hidden."""
    # Most texts end at the first look, which is in C and has no pattern.
    return not text.isprintable() and _HIDDEN.search(text) is not None


def escaped(text: str) -> str:
    r"""Return the text with each hidden character as in Python: ``\x1b``, ``\n``, ``\u202e``."""
    return text if text.isprintable() else _HIDDEN.sub(_escape, text)


def escaped_lines(text: str) -> str:
    """Return the text as :func:`escaped` does, but with its lines and tabulators as they are."""
    if text.isprintable():
        return text
    return _HIDDEN.sub(lambda found: found[0] if found[0] in "\n\t" else _escape(found), text)


def escaped_json(document: str) -> str:
    r"""Return the same JSON document with hidden characters as ``\u`` and four digits.

    Outside of its texts a document has ends of lines alone, which stay.
    """
    if document.isprintable():
        return document
    return _HIDDEN.sub(lambda found: found[0] if found[0] == "\n" else _units(found[0]), document)


def shown_name(name: object) -> str:
    """Return a name in quotes, hidden characters escaped, cut where it is far too long."""
    text = name if isinstance(name, str) else repr(name)
    kept = repr(text[:SHOWN_CHARS])
    return kept if len(text) <= SHOWN_CHARS else f"{kept}… ({len(text):,} characters)"


def shown_names(names: Iterable[str], most: int = 20) -> str:
    """Return names as :func:`shown_name` does, and the number of those that are too many."""
    every = list(names)
    shown = ", ".join(map(shown_name, every[:most]))
    return shown if len(every) <= most else f"{shown} and {len(every) - most:,} more"


def _units(character: str) -> str:
    """A character as JSON escapes it, by its UTF-16."""
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
