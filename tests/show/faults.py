"""The faults of the daemons, one at a time; each is undone when its function returns.

The affected daemon is healthy before and after the fault. Where an operator would have to act,
the operator's commands are used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from ingester.client import Client
from tests.drivers.waiting import until
from tests.show.load import LOOKS_BACK, NAMESPACE, TABLE, Load, Source
from tests.show.realm import Realm


@dataclass
class Scene:
    """The place of a fault, and the length of faults that have one."""

    realm: Realm
    load: Load
    random: Random
    lasts_s: float
    said: list[str]
    """Lines for the report."""

    def anyone(self) -> str:
        """The name of a running daemon."""
        return self.random.choice([member.name for member in self.realm.running()])

    def owner(self) -> str:
        """The name of the daemon that owns the keyed table, or of any daemon."""
        owners = self.load.keyed.replica.owners
        for member in self.realm.running():
            if owners and member.endpoint == owners[-1][1]:
                return member.name
        return self.anyone()


def kill(scene: Scene) -> None:
    """``kill -9``, and a start."""
    name = scene.anyone()
    scene.realm.kill(name)
    time.sleep(min(1.0, scene.lasts_s))
    scene.realm.start(name)


def full_disk(scene: Scene) -> None:
    """The disk of one daemon's log is full."""
    disk = scene.realm.members[scene.anyone()].disk
    if "full" not in disk.troubles:
        scene.said.append("full disk: left out, no file system can be mounted here")
        return
    disk.befall("full")
    time.sleep(scene.lasts_s)
    disk.heal()


def dead_store(scene: Scene) -> None:
    """The store refuses every request."""
    scene.realm.proxy.suffer("away")
    time.sleep(scene.lasts_s)
    scene.realm.proxy.heal()


def certificates(scene: Scene) -> None:
    """Replace the key and certificate of all daemons while they run."""
    scene.realm.renew_certificates()
    time.sleep(min(3.0, scene.lasts_s))


def drain(scene: Scene) -> None:
    """Drain, stop and start the owner of the keyed table: a step of a rolling restart."""
    name = scene.owner()
    _drain(scene, name)
    _stop(scene, name)
    scene.realm.start(name)


def add_and_remove(scene: Scene) -> None:
    """A fourth daemon starts, clients are told of it, and it leaves again."""
    scene.realm.start("d")
    scene.load.reconnect()
    before = scene.load.acknowledged
    until(lambda: scene.load.acknowledged > before or bool(scene.load.wrong), "writes to go on")
    time.sleep(scene.lasts_s)
    _drain(scene, "d")
    scene.realm.members["d"].known = False
    scene.load.reconnect()
    _stop(scene, "d")


def lost_disk(scene: Scene) -> None:
    """A daemon and its data directory are lost; another takes its name, with an empty disk.

    Every second time it is the owner of the keyed table, whose ownership no other daemon takes
    meanwhile.
    """
    keyed = scene.load.keyed
    name = scene.random.choice([scene.anyone, scene.owner])()
    keyed.is_whole = False
    scene.load.losses += 1
    scene.realm.lose_disk(name)
    # Rows that only this daemon had are missing until their sources have resent them.
    for source in scene.load.writers:
        source.may_miss_below = source.acknowledged
    told = scene.realm.refused(name)
    if "accept-lost-log" not in told:
        scene.load.wrong.append(f"a start with an empty disk was not refused by name: {told!r}")
    scene.said.append(f"lost disk of {name}: {told}")
    scene.realm.start(name, "--accept-lost-log")
    for source in scene.load.writers:
        source.may_miss_below = source.acknowledged
    with scene.realm.client() as client:
        for source in scene.load.writers:
            if source.keeps:
                whole = partial(_is_whole, client, source)
                until(whole, f"{source.origin} to have sent all again", 60.0)
                source.may_miss_below = 0
        until(lambda: not keyed.wrong(client), "the keyed table to be whole again", 60.0)
    scene.load.losses += 1
    keyed.is_whole = True


def _is_whole(client: Client, source: Source) -> bool:
    """Whether a source's newest rows before the loss of a disk are present."""
    upto = source.may_miss_below
    first = max(0, upto - LOOKS_BACK)
    asked = [("writer", "=", source.number), ("n", ">=", first), ("n", "<", upto)]
    return bool(client.query(NAMESPACE, TABLE, ["n"], asked).num_rows == upto - first)


def _drain(scene: Scene, name: str) -> None:
    member = scene.realm.members[name]
    with scene.realm.client(member.endpoint, who="operator") as client:
        client.action("drain", {"wait_s": 60}, timeout_s=90)


def _stop(scene: Scene, name: str) -> None:
    code = scene.realm.leave(name)
    if code != 0:
        scene.load.wrong.append(f"{name} was drained, and stopped with exit code {code}")


FAULTS: dict[str, Callable[[Scene], None]] = {
    "kill": kill,
    "full disk": full_disk,
    "dead store": dead_store,
    "certificates": certificates,
    "drain": drain,
    "added daemon": add_and_remove,
    "lost disk": lost_disk,
}
