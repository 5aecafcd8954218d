"""The answers of a hook: go on, give up, ask again later, undo.

Law of this file: pure. An answer is a decision and a reason that people read; which decisions a
method may give stands in :mod:`ingester.lifecycle.methods`.
"""

from __future__ import annotations

from enum import Enum

import msgspec


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
