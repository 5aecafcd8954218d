"""The answers of a hook: go on, give up, ask again later, undo.

Law of this file: pure. An answer is a decision and a reason that people read; which decisions a
method may give stands in :mod:`ingester.pushes.methods`.
"""

from __future__ import annotations

import re
from enum import Enum

import msgspec

LONGEST = 1000
"""A reason is cut to so many characters: each record of its push has it, and the daemons' page."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Decision(Enum):
    """One of the four things that a hook may say."""

    PROCEED = "proceed"
    """The step goes on."""
    ABORT = "abort"
    """This step and all that would follow are cancelled; what has swapped stays."""
    WAIT = "wait"
    """The hook is asked again after ``wait_interval``."""
    ROLLBACK = "rollback"
    """Every region that has swapped goes back to the version that it had before the push."""


class Answer(msgspec.Struct, frozen=True):
    """A decision with its reason."""

    decision: Decision
    reason: str = ""


def readable(said: object) -> str:
    """Return a reason or an error as text that can be kept, and shown in a terminal; None is none.

    What is no Unicode, and control characters but ends of lines, are shown by their numbers.
    """
    try:
        text = "" if said is None else str(said)
    except Exception:
        text = f"a {type(said).__name__} that cannot be shown"
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 1]}…"
    text = text.encode("utf-8", "backslashreplace").decode()
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


PROCEED = Answer(Decision.PROCEED)
WAIT = Answer(Decision.WAIT)
ABORT = Answer(Decision.ABORT)
ROLLBACK = Answer(Decision.ROLLBACK)


def wait(reason: str) -> Answer:
    """Return the answer to be asked again later, with what is waited for."""
    return Answer(Decision.WAIT, reason)


def abort(reason: str) -> Answer:
    """Return the answer that cancels what would follow."""
    return Answer(Decision.ABORT, reason)


def rollback(reason: str) -> Answer:
    """Return the answer that undoes every swap."""
    return Answer(Decision.ROLLBACK, reason)
