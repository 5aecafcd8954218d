"""The state of a copy and where it is kept: in the sink's transactions, or elsewhere after them.

Law of this file: a state never says more than the rows that are there. One that the sink keeps is
put in the transaction of its rows; one that is kept elsewhere is put after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from ingester.followers.fold import Seen
from ingester.followers.guard import Guard
from ingester.followers.sink import CheckpointStore, StateKey
from ingester.followers.state import (
    FollowState,
    Ledger,
    Position,
    decode_state,
    encode_state,
)


class BuildAnew(Exception):
    """The copy cannot be made equal in place: it is to be filled from the beginning."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a copy is kept, and its state."""

    sink: Guard
    states: CheckpointStore
    own: bool = True
    """Whether the states are kept by the sink: in its transactions, if it has any."""
    name: str = ""
    """Tells copies apart whose states are in one store."""


class Keeping:
    """A state and the groups that belong to it. One thread."""

    def __init__(self, place: Place, key: StateKey, state: FollowState, ledger: Ledger) -> None:
        self.state = state
        self.ledger = ledger
        self._sink, self._states = place.sink, place.states
        self._key = key
        self._own = place.own
        self._deferred = place.sink.transactional and not place.own
        self._due: list[bytes] = []

    @property
    def seen(self) -> Seen:
        """What the copy has of its daemon."""
        return Seen(self.state.ingester_id, self.state.position, self.state.floor)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All calls of the sink inside, and the states, are kept together where it can do that."""
        self._due.clear()
        with self._sink.transaction():
            yield
        for data in self._due[-1:]:
            self._states.put(self._key, data)

    def set(self, **changes: Any) -> None:
        """Change the state, and keep it with the groups as they are. Inside a transaction."""
        self.state = msgspec.structs.replace(self.state, **changes)
        data = encode_state(self.state, self.ledger)
        if self._deferred:
            self._due.append(data)
        else:
            self._states.put(self._key, data)

    def pass_over(self, position: Position) -> bool:
        """Go on to a position before which there was nothing for the copy.

        Returns:
            Whether that is done. It is not where the sink keeps the state: there it is to be set.
            Elsewhere it would be an operation of the daemon's, behind which there is a position
            again; the earlier state is as good.
        """
        if not self._own:
            self.state = msgspec.structs.replace(self.state, position=position)
        return not self._own

    def read(self) -> None:
        """Go back to the state that is kept, after an error.

        Raises:
            BuildAnew: There is none, or nobody knows what of a file was put.
        """
        with self._sink.transaction():
            data = self._states.get(self._key)
        if data is None:
            raise BuildAnew
        self.state, self.ledger = decode_state(data)
        if self.state.filled is not None and not self._sink.transactional:
            raise BuildAnew
