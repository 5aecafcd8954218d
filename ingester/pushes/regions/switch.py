"""The swap of a push in one store, and its rollback.

    swap      make the push's generation current, by one switch that carries the push's id
    go_back   make the previous generation current again
    forbid    no later switch to the push's generation takes effect

Each happens once, however often it is asked for, and despite concurrent switches by others. A
generation that was rolled back never becomes current again (tests/pushes/test_region_faults).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ingester.pushes.regions.generation import PushedGeneration
from ingester.pushes.tasks import RegionFailed, RegionUnreachable
from persist.manifest import (
    Switch,
    SwitchedMeanwhile,
    SwitchRefused,
    TableNotFound,
    TableVersionNotKept,
    VersionSealed,
    current_version,
    switches,
)
from persist.switching import finish_switch, forbid_switch, load_current, roll_back, switch_version

_TRIES = 20
T = TypeVar("T")


def generation_before(version: PushedGeneration) -> int:
    """Return the current generation, or the one before if the push's is current."""
    of = version.store, version.namespace, version.table
    current = current_version(*of)
    if current != version.number:
        return current
    done = [each.switch for each in switches(*of)]
    return next(each.previous for each in reversed(done) if each.table_version == current)


def swap(version: PushedGeneration) -> int:
    """Make the push's generation current; return the previous one.

    Raises:
        RegionFailed: it was given up or rolled back, its data is missing, or it does not follow the
            current generation.
    """
    of = version.store, version.namespace, version.table
    done = [each.switch for each in switches(*of)]
    if any(each.previous == version.number and each.why == "rollback" for each in done):
        raise RegionFailed(f"generation {version.number} was current, and rolled back")
    for each in done:
        if each.push_id == version.push_id and each.why == "swap":
            return each.previous
    version.check_not_given_up()
    state = version.made()
    if version.rows(state) is None:
        raise RegionFailed(f"the data of generation {version.number} is missing")
    # Rows are replayed by their position in the manifest of one particular generation.
    replay = version.replay(state)

    def switch() -> Switch:
        return switch_version(
            *of,
            version.number,
            push_id=version.push_id,
            since=replay.since,
            previous=replay.table_version,
        )

    try:
        return _settled(version, switch).previous
    except (SwitchRefused, TableVersionNotKept) as exc:
        raise RegionFailed(str(exc)) from exc


def go_back(version: PushedGeneration) -> bool:
    """Make the previous generation current again; return whether that is done.

    Raises:
        RegionFailed: the rollback is impossible, as the message says, or a later generation is
            current and has to be rolled back first.
    """
    of = version.store, version.namespace, version.table
    with suppress(TableNotFound):
        load_current(*of)  # completes a rollback that was started
    if current_version(*of) != version.number and _was_rolled_back(version):
        return True
    if forbid(version):
        try:
            _settled(version, lambda: roll_back(*of, version.number, push_id=version.push_id))
        except (SwitchRefused, TableVersionNotKept) as exc:
            raise RegionFailed(str(exc)) from exc
    back = _was_rolled_back(version)
    if not back and _was_current(version):
        raise RegionFailed(f"generation {version.number} {_replaced(version)}")
    return back


def forbid(version: PushedGeneration) -> bool:
    """Return whether the generation is current; if not, it can no longer become so.

    One that was current is kept: a later push may have to return to it.
    """
    of = version.store, version.namespace, version.table
    if current_version(*of) != version.number and _was_current(version):
        return False
    return forbid_switch(*of, version.number, f"push {version.push_id} was given up")


def _replaced(version: PushedGeneration) -> str:
    """The reason why a generation is no longer current."""
    done = switches(version.store, version.namespace, version.table)
    after = [each.switch for each in done if each.switch.previous == version.number]
    if not after:
        return "is no longer current"
    by = f" of push {after[-1].push_id}" if after[-1].push_id else ""
    return f"was replaced by generation {after[-1].table_version}{by}: roll that one back first"


def _was_current(version: PushedGeneration) -> bool:
    """Whether the generation became current by its push's own swap."""
    return any(
        (each.switch.push_id, each.switch.why) == (version.push_id, "swap")
        for each in switches(version.store, version.namespace, version.table)
    )


def _was_rolled_back(version: PushedGeneration) -> bool:
    """Whether the generation was current, and rolled back."""
    return any(
        (each.switch.previous, each.switch.why) == (version.number, "rollback")
        for each in switches(version.store, version.namespace, version.table)
    )


def _settled(version: PushedGeneration, call: Callable[[], T]) -> T:
    """Retry while other switches are active, completing them first."""
    for _ in range(_TRIES):
        try:
            return call()
        except VersionSealed:
            finish_switch(version.store, version.namespace, version.table)
        except SwitchedMeanwhile:
            continue
    raise RegionUnreachable("too many concurrent switches of the table")
