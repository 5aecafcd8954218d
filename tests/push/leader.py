"""A controller in its own process, which ends with the push unless it is killed before.

python -m tests.push.leader CONFIG PUSH_ID DIE_AT before|after
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from datetime import timedelta

from ingester.observability.logs import configure_logs
from ingester.pushes.config import PushConfig, read_push_config
from ingester.pushes.controller import Controller, ControllerSettings
from ingester.pushes.driver import DriverPace
from ingester.pushes.hook_loading import load_hooks
from ingester.pushes.hook_runner import HookRunner
from ingester.pushes.leading import Heartbeat, Leadership, controller_name
from ingester.pushes.regions.region import StoreRegion, open_regions
from ingester.pushes.regions.store import RegionStore
from ingester.pushes.store import PushStore
from tests.push.dying import Death, DyingStore

PACE = DriverPace(poll=timedelta(seconds=0.1), retry=timedelta(seconds=0.3))
HEARTBEAT = Heartbeat(every=timedelta(seconds=0.2), gone_after=timedelta(seconds=0.6))


def leadership_of(config: PushConfig, death: Death) -> Leadership:
    """Return what a leader of pushes needs, over stores in which this process may end."""
    return Leadership(
        store=_dying(RegionStore.open(config.regions[0]), death).store,
        controller=controller_name(),
        regions=lambda: regions_of(config, death),
        panel=HookRunner(config.hooks, load_hooks(config.hooks)),
        rules=config.rules(),
        pace=PACE,
        heartbeat=HEARTBEAT,
    )


def regions_of(config: PushConfig, death: Death) -> dict[str, StoreRegion]:
    """Return the regions, over the same kind of stores."""
    found = open_regions(config.regions)
    for region in found.values():
        region.home = _dying(region.home, death)
        region.peers = [_dying(peer, death) for peer in region.peers]
    return found


def _dying(store: RegionStore, death: Death) -> RegionStore:
    return RegionStore(store.name, DyingStore(store.store, death))


def main(file: str, push_id: str, at: str, when: str) -> None:
    """Lead pushes without a leader until this push is over."""
    configure_logs()
    faulthandler.register(signal.SIGUSR1)  # prints the stacks of a stuck leader
    config = read_push_config(file)
    place = leadership_of(config, Death(int(at), done=when == "after"))
    stop = threading.Event()
    controller = Controller(place, ControllerSettings(look_every=timedelta(seconds=0.1)))
    thread = threading.Thread(target=controller.run, args=(stop,))
    thread.start()
    pushes = PushStore(place.store)
    while not pushes.newest(push_id).record.over:
        stop.wait(0.1)
    stop.set()
    thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
