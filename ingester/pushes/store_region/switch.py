"""Forth and back in one store: the switches of a table that belong to a push.

    swap      the push's version counts, by one switch that carries its id
    go_back   the version counts that did so before
    forbid    no switch to the push's version takes effect any more

Law of this file: each is done once, however often it is asked for, and whoever else switches the
table meanwhile. Who was in and was rolled back never goes in again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ingester.pushes.regions import RegionFailed, RegionUnreachable
from ingester.pushes.store_region.pushed_version import PushedVersion
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


def version_before(version: PushedVersion) -> int:
    """Return the table version that counts, or did before the push's, where that is it."""
    of = version.store, version.namespace, version.table
    current = current_version(*of)
    if current != version.number:
        return current
    done = [each.switch for each in switches(*of)]
    return next(each.previous for each in reversed(done) if each.table_version == current)


def swap(version: PushedVersion) -> int:
    """Make the push's version the one that counts; return which one did so before.

    Raises:
        RegionFailed: it was given up, its data is not there, it was rolled back, or it does not go
            on from the version that counts.
    """
    of = version.store, version.namespace, version.table
    done = [each.switch for each in switches(*of)]
    if any(each.previous == version.number and each.why == "rollback" for each in done):
        raise RegionFailed(f"version {version.number} was current, and rolled back")
    for each in done:
        if each.push_id == version.push_id and each.why == "swap":
            return each.previous
    version.check_not_given_up()
    state = version.made()
    if version.rows(state) is None:
        raise RegionFailed(f"the data of version {version.number} is not there")
    # Rows go along by their place in the manifest of one version: of no other one.
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


def go_back(version: PushedVersion) -> bool:
    """Make the version count that did so before the push's; return whether that is, or was, done.

    Raises:
        RegionFailed: there is no way back, as the message says; or a later version counts, which
            has to be rolled back before: ask again then.
    """
    of = version.store, version.namespace, version.table
    with suppress(TableNotFound):
        load_current(*of)  # a way back that was begun is ended
    if current_version(*of) != version.number and _was_left(version):
        return True
    if forbid(version):
        try:
            _settled(version, lambda: roll_back(*of, version.number, push_id=version.push_id))
        except (SwitchRefused, TableVersionNotKept) as exc:
            raise RegionFailed(str(exc)) from exc
    left = _was_left(version)
    if not left and _has_counted(version):
        raise RegionFailed(f"version {version.number} {_replaced(version)}")
    return left


def forbid(version: PushedVersion) -> bool:
    """Return whether the version counts; if not, the push will not swap once this has returned.

    One that has counted is kept: its push goes in once, and a later one may have to go back to it.
    """
    of = version.store, version.namespace, version.table
    if current_version(*of) != version.number and _has_counted(version):
        return False
    return forbid_switch(*of, version.number, f"push {version.push_id} was given up")


def _replaced(version: PushedVersion) -> str:
    """What took the place of a version that has counted, and would make way for it again."""
    done = switches(version.store, version.namespace, version.table)
    after = [each.switch for each in done if each.switch.previous == version.number]
    if not after:
        return "counts no more"
    by = f" of push {after[-1].push_id}" if after[-1].push_id else ""
    return f"was replaced by version {after[-1].table_version}{by}: roll that one back first"


def _has_counted(version: PushedVersion) -> bool:
    """Whether the version has counted by its push's own swap."""
    return any(
        (each.switch.push_id, each.switch.why) == (version.push_id, "swap")
        for each in switches(version.store, version.namespace, version.table)
    )


def _was_left(version: PushedVersion) -> bool:
    """Whether the version has counted, and was rolled back."""
    return any(
        (each.switch.previous, each.switch.why) == (version.number, "rollback")
        for each in switches(version.store, version.namespace, version.table)
    )


def _settled(version: PushedVersion, call: Callable[[], T]) -> T:
    """Call again where another switch was under way, which is ended first."""
    for _ in range(_TRIES):
        try:
            return call()
        except VersionSealed:
            finish_switch(version.store, version.namespace, version.table)
        except SwitchedMeanwhile:
            continue
    raise RegionUnreachable("others switch the table's version all the time")
