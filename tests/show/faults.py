"""What is done to the daemons, one thing at a time; each is over, and undone, when it returns.

Law of this file: whoever is meant was well before, and is well afterwards. What an operator would
have to do is done here by the commands that an operator has.
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
    """Where a fault happens, and how long those last that have a length."""

    realm: Realm
    load: Load
    random: Random
    lasts_s: float
    said: list[str]
    """What is to be in the report."""

    def anyone(self) -> str:
        """The name of a daemon that runs."""
        return self.random.choice([member.name for member in self.realm.running()])

    def owner(self) -> str:
        """The name of the daemon that has the keyed table, or anyone's."""
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
    """No byte is free where the log of one daemon is."""
    disk = scene.realm.members[scene.anyone()].disk
    if "full" not in disk.troubles:
        scene.said.append("full disk: left out, no file system can be mounted here")
        return
    disk.befall("full")
    time.sleep(scene.lasts_s)
    disk.heal()


def dead_store(scene: Scene) -> None:
    """Each request to the store is refused."""
    scene.realm.proxy.suffer("away")
    time.sleep(scene.lasts_s)
    scene.realm.proxy.heal()


def certificates(scene: Scene) -> None:
    """Another key and certificate for all, taken up while they run."""
    scene.realm.renew_certificates()
    time.sleep(min(3.0, scene.lasts_s))


def drain(scene: Scene) -> None:
    """The owner of the keyed table is drained, stopped, started: a step of a rolling restart."""
    name = scene.owner()
    _drain(scene, name)
    _stop(scene, name)
    scene.realm.start(name)


def add_and_remove(scene: Scene) -> None:
    """A fourth daemon comes, clients are told of it, and it goes again."""
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
    """A daemon and its data directory are gone; another takes its name, with an empty disk.

    Every second time it is the owner of the keyed table, which nobody else takes meanwhile.
    """
    keyed = scene.load.keyed
    name = scene.random.choice([scene.anyone, scene.owner])()
    keyed.is_whole = False
    scene.load.losses += 1
    scene.realm.lose_disk(name)
    # What it alone had is missing from here on, until those who keep it have sent it again.
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
    """Whether the newest rows of a source before the loss of a disk are there."""
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
