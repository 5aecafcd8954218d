"""Entries and drafts: operations from the thread that received them to the log.

All work per byte is done when an entry is built, never on the event loop. From `Log.append` until
``on_done`` an entry belongs to the log; no other code changes it. A `Draft` becomes an entry only
just before its group is formed, together with its neighbours, which is cheaper for small
operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wal.errors import LogError
from wal.format import MAX_OPERATIONS, Body, RecordKind, make_body, record_bytes
from wal.route import Route

if TYPE_CHECKING:
    from typing_extensions import Buffer

_WRITABLE_KINDS = frozenset(int(kind) for kind in RecordKind) - {
    int(RecordKind.OBJECT),
    int(RecordKind.SEAL),
}


@dataclass(frozen=True, eq=False)
class Preamble:
    """A record that must precede, in the same segment, any entry that names it.

    The log writes it once per segment. The object's identity is the key: entries share one object.
    The bytes of `parts` must not change while it is in use.
    """

    kind: int
    parts: tuple[Buffer, ...]
    body: Body = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_kind(self.kind)
        object.__setattr__(self, "body", make_body(self.parts))

    @property
    def stored_bytes(self) -> int:
        """The bytes that the record takes in a segment."""
        return record_bytes(self.body.length)


class OrderedSession:
    """A client's entries, none of which may follow a refused one in the log.

    The log sets ``refusal`` to the first error that answers one of them, and then answers all later
    ones with it.
    """

    __slots__ = ("refusal",)

    def __init__(self) -> None:
        self.refusal: LogError | None = None


class Draft:
    """An item that becomes an entry when its turn comes, in the order of the appends.

    ``waits``: the appender is expected to append nothing more before the answer.

    Args:
        nbytes: The approximate size in the log.
    """

    __slots__ = ("sessions", "stored_bytes", "waits")

    def __init__(self, nbytes: int, sessions: tuple[OrderedSession, ...] = ()) -> None:
        self.stored_bytes = nbytes
        self.sessions = sessions
        self.waits = False

    def answer(self, error: BaseException | None) -> None:
        """Handle the log's refusal of a draft that never became an entry. Called on the loop."""
        raise NotImplementedError


class Entry:
    """One or several operations, built and appended in any thread.

    The constructor computes the payload's length and CRC-32C over `parts` in order. Parts of more
    than a few KiB are referenced, not copied, and must not change until ``on_done``.

    ``on_stored`` is called in the thread that wrote the entry once it counts as written; it must
    not raise. The entry may not be applied yet: a reader waits until the log is `Log.settled`.
    ``on_done`` is called on the loop, possibly with the failure that ends the process.

    ``seq``, the first operation's sequence, and ``segment`` are -1 until the log forms the entry's
    group. Only entries of kind OPERATION take sequences, one per operation; another kind carries
    the next operation's sequence.

    ``routes`` are those of its tables, and of others that must not stay behind. It ships if it is
    ``at_store`` or one of them ships; then ``shipped`` is set when it is written, and ``on_stored``
    is called when the store has it.
    """

    __slots__ = (
        "at_store",
        "body",
        "kind",
        "on_done",
        "on_stored",
        "operations",
        "preambles",
        "routes",
        "segment",
        "seq",
        "sessions",
        "shipped",
        "stored_bytes",
        "tag",
    )

    def __init__(
        self,
        kind: int,
        parts: Sequence[Buffer],
        preambles: tuple[Preamble, ...] = (),
        sessions: tuple[OrderedSession, ...] = (),
        operations: int = 1,
    ) -> None:
        _check_kind(kind)
        if not 1 <= operations <= (MAX_OPERATIONS if kind == RecordKind.OPERATION else 1):
            raise ValueError(f"a record of kind {kind} cannot hold {operations} operations")
        self.kind = int(kind)
        self.body = make_body(parts)
        self.stored_bytes = record_bytes(self.body.length)
        self.preambles = preambles
        self.tag: Any = None
        self.sessions = sessions
        self.operations = operations
        self.routes: tuple[Route, ...] = ()
        self.at_store = self.shipped = False
        self.seq = -1
        self.segment = -1
        self.on_done: Callable[[Entry, BaseException | None], None] | None = None
        self.on_stored: Callable[[Entry], None] | None = None

    @property
    def payload_bytes(self) -> int:
        return self.body.length

    def answer(self, error: BaseException | None) -> None:
        if self.on_done is not None:
            self.on_done(self, error)

    def __repr__(self) -> str:
        return (
            f"Entry(kind={self.kind}, payload_bytes={self.body.length}, seq={self.seq}, "
            f"segment={self.segment})"
        )


def _check_kind(kind: int) -> None:
    if kind not in _WRITABLE_KINDS:
        raise ValueError(f"kind {kind} cannot be written; known kinds: {sorted(_WRITABLE_KINDS)}")
