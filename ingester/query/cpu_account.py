"""What one answer has used of the processors, and what it may.

Law of this file: values only, but for the question whether somebody still waits for the answer.
Waiting is not counted, for a turn, a disk, a store or a client.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ingester.errors import TooSlow


def always_wanted() -> None:
    """Somebody waits for it."""


class CpuAccount:
    """The processor time of one answer.

    Args:
        namespace: whose share of the processors it comes from.
        limit_s: what it may use, ``query.max_cpu``; what nobody waits for has no limit.
        check_wanted: raises where the client that asked has gone. It is called in the threads of
            its call only.
    """

    __slots__ = ("check_wanted", "limit_s", "namespace", "place_s", "used_s")

    def __init__(
        self,
        namespace: str,
        limit_s: float = math.inf,
        check_wanted: Callable[[], None] = always_wanted,
    ) -> None:
        self.namespace = namespace
        self.limit_s = limit_s
        self.check_wanted = check_wanted
        self.used_s = 0.0
        """What it has used, in seconds."""
        self.place_s = 0.0
        """The same, as a place on the clock of the scheduler."""

    def check(self, more_s: float = 0.0) -> None:
        """See that the answer may go on.

        Args:
            more_s: what is used and not yet counted.

        Raises:
            TooSlow: it has used what it may.
            Exception: its client has gone; see ``check_wanted``.
        """
        self.check_wanted()
        if self.used_s + more_s > self.limit_s:
            raise TooSlow(
                f"the query has computed for {self.limit_s:g} s, as long as query.max_cpu allows,"
                " and was ended: what came is a part of the answer; ask for less, by a filter that"
                " leaves files out or has fewer alternatives, or for fewer columns",
                details={"limit": "query.max_cpu", "most": self.limit_s},
            )
