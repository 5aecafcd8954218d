"""Where pushes are kept, and what it takes to lead them, from a configuration file.

Law of this file: a configuration that cannot be is wrong usage, and names what is wrong; a store
that is away is told as such. Hooks are loaded by those alone who lead.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ingester.pushes.leading import Leadership, controller_name
from ingester.pushes.loading import load_hooks
from ingester.pushes.push_config import PushConfig, PushConfigError, read_push_config
from ingester.pushes.push_store import PushDamaged, PushNotFound, PushStore
from ingester.pushes.regions import RegionFailed, RegionUnreachable
from ingester.pushes.runner import HookFailure, HookRunner
from ingester.pushes.settings import HookConfigError
from ingester.pushes.store_region.region import open_regions
from ingester.pushes.store_region.store import RegionStore
from ingester.reports.pushes import (
    KeptIn,
    status_path,
)
from persist.store import ObjectStore, StoreError, StoreRetry, StoreUnavailable

from .exits import FAILED, REFUSED, USAGE, CommandFailed

_SHORT = StoreRetry(first_s=0.2, cap_s=1.0, for_s=10.0)
"""A person waits: a store that is away is asked again for so long."""


@dataclass(frozen=True)
class PushPlace:
    """A configuration, and the store that it keeps pushes in: that of its first region."""

    config: PushConfig
    home: RegionStore

    @property
    def store(self) -> ObjectStore:
        """The store, whether it is there or not."""
        return self.home.store

    def check_there(self) -> None:
        """Raise RegionUnreachable if the store is a folder that is not there.

        One that was not mounted must not look like one without pushes.
        """
        with self.home.reached():
            pass

    @property
    def pushes(self) -> PushStore:
        """The pushes that are kept."""
        return PushStore(self.store, _SHORT)

    @property
    def kept_in(self) -> KeptIn:
        """The place of the pushes, for people."""
        return KeptIn(region=self.config.regions[0].name, url=self.store.url)


def push_place(file: Path) -> PushPlace:
    """Return the place that a configuration file names.

    Raises:
        CommandFailed: the file cannot be read, or names something that cannot be.
    """
    with told():
        config = read_push_config(file)
        try:
            return PushPlace(config, RegionStore.open(config.regions[0]))
        except PushConfigError as exc:
            raise PushConfigError(f"{file}: {exc}") from exc


def leadership(
    place: PushPlace, tell: Callable[[HookFailure], None]
) -> tuple[Leadership, HookRunner]:
    """Return what it takes to lead pushes here, and the hooks that are asked.

    Raises:
        CommandFailed: a hook or a region cannot be made of what is configured.
    """
    config = place.config
    with told():
        runner = HookRunner(config.hooks, load_hooks(config.hooks), tell)
        open_regions(config.regions)
    made = Leadership(
        store=place.store,
        controller=controller_name(),
        regions=lambda: open_regions(config.regions),
        panel=runner,
        rules=config.rules(),
    )
    return made, runner


def forget(place: PushPlace, push_id: str) -> None:
    """Take back what the regions' daemons are told of a push that is deleted; best effort."""
    for region in open_regions(place.config.regions).values():
        with suppress(RegionUnreachable, RegionFailed), region.home.reached() as store:
            store.delete(status_path(push_id))


@contextmanager
def told() -> Iterator[None]:
    """Tell what a configuration, a push or a store refuses as a failure of the command."""
    try:
        yield
    except (PushConfigError, HookConfigError) as exc:
        raise CommandFailed(str(exc), USAGE) from exc
    except PushNotFound as exc:
        raise CommandFailed(f"{exc}; `ingester pushes list` has those that there are") from exc
    except PushDamaged as exc:
        raise CommandFailed(str(exc), FAILED) from exc
    except (StoreUnavailable, RegionUnreachable) as exc:
        raise CommandFailed(f"{exc}; try again", REFUSED) from exc
    except (StoreError, ValueError) as exc:
        raise CommandFailed(str(exc), FAILED) from exc
