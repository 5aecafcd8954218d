"""Who takes the writes of a keyed table, as a manifest version says it.

Law of this file: pure. A claim holds while the daemon that made it may still have rows of the table
that are in no file: until it has closed, as a clean stop and an adoption of its log say. A later
process under the same id is the same owner.
"""

from __future__ import annotations

from collections.abc import Sequence

from persist.manifest.actions import Action, Owner
from persist.manifest.errors import ProposalConflict
from persist.manifest.state import TableState


def live_owner(state: TableState) -> Owner | None:
    """Whoever takes the table's writes now; None where anybody may claim them."""
    owner = state.owner
    writer = None if owner is None else state.writers.get(owner.ingester_id)
    return None if writer is None or writer.state == "closed" else owner


def check_owner(state: TableState, actions: Sequence[Action]) -> None:
    """Refuse a claim that somebody else's stands against.

    Raises:
        ProposalConflict
    """
    owner = live_owner(state)
    for action in actions:
        if (
            isinstance(action, Owner)
            and owner is not None
            and owner.ingester_id != action.ingester_id
        ):
            raise ProposalConflict(f"{owner.ingester_id} takes the table's writes", state)
