"""A region as it is: a store, the daemons that serve from it, and the other regions of its pushes.

    open_regions(settings) ─▶ StoreRegion each      what a driver asks of regions
    region.definition(push) ─▶ files below region.place(push) ─▶ region.commit_data(push, files)

Law of this file: what is there is told by the store alone, so each call may come again, from
whichever process. It fails for good only where it has changed nothing; a version whose data is not
what it should be, or whose swap was refused, is given up. One call does not go on for minutes: long
work is done in slices, and asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from ingester.pushes.contexts import Comparison
from ingester.pushes.push_config import RegionSettings
from ingester.pushes.record import PushRecord
from ingester.pushes.regions import Created, RegionFailed, RegionUnreachable
from ingester.pushes.store_region.daemons import RegionDaemons
from ingester.pushes.store_region.data import RegionData
from ingester.pushes.store_region.data_check import SLICE_S
from ingester.pushes.store_region.data_copy import Place, SourceAway
from ingester.pushes.store_region.pushed_files import PushedFile
from ingester.pushes.store_region.pushed_table import ready_table, replay_version
from ingester.pushes.store_region.pushed_version import PushedVersion
from ingester.pushes.store_region.store import RegionStore
from ingester.pushes.store_region.switch import forbid, go_back, swap, version_before
from ingester.pushes.version_statistics import statistics_of
from persist.manifest import Manifest, ManifestError, TableNotFound, TableState, may_count
from persist.store import ObjectStore, StoreError
from persist.table import TableDefinition


def open_regions(settings: Iterable[RegionSettings]) -> dict[str, StoreRegion]:
    """Return the regions by their names, each of which knows the others. Nothing is contacted.

    Raises:
        PushConfigError: a store that cannot be.
    """
    listed = list(settings)
    stores = [RegionStore.open(each) for each in listed]
    return {
        each.name: StoreRegion(
            store,
            RegionDaemons(each.endpoints, each.connection()),
            [peer for peer in stores if peer is not store],
        )
        for each, store in zip(listed, stores, strict=True)
    }


@dataclass(slots=True)
class StoreRegion:
    """A :class:`ingester.pushes.regions.Region`. Calls block, and come one at a time.

    Attributes:
        home: The region's own store.
        peers: The stores of other regions, from which data is copied.
        slice_s: So long one call checks or copies files before it says that there is more to do.
    """

    home: RegionStore
    daemons: RegionDaemons
    peers: Sequence[RegionStore] = ()
    slice_s: float = SLICE_S
    _data: dict[str, RegionData] = field(default_factory=dict)
    """By push, while its files are checked."""

    @property
    def name(self) -> str:
        """The region's name in the push's order."""
        return self.home.name

    # ------------------------------------------------------------------------- version and data

    def register_schema(self, push: PushRecord) -> None:
        """Check the push's columns against the table's, and add those that it lacks."""
        self.home.check()
        with self.home.reached() as store:
            ready_table(store, push)

    def create_version(self, push: PushRecord) -> Created:
        """Make the push's version, empty and not current; where there is no table, make that."""
        if push.region(self.name).table_version is None:
            self.home.check()
        with self.home.reached() as store:
            version = self._version(store, push)
            version.check_not_given_up()
            if version.state() is None:
                self._create(store, push, version)
            version.made()
            return Created(version.number, version_before(version))

    def _create(self, store: ObjectStore, push: PushRecord, version: PushedVersion) -> None:
        state = ready_table(store, push)
        newest = state.version
        if push.plan.replay_since == "start":
            told = self.daemons.persist(push.namespace, push.table)
            state = ready_table(store, push)
            # Of another version of the table it says nothing: what came by then is in this state.
            newest = min(told.get(state.table_version, state.version), state.version)
        version.create(state, replay_version(store, push, state, newest))

    def definition(self, push: PushRecord) -> TableDefinition:
        """Return the definition of the version, for which the push's files are to be written."""
        with self.home.reached() as store:
            return TableDefinition.of_state(self._version(store, push).made())

    def place(self, push: PushRecord) -> Place:
        """Return the store, and the folder in it in which the paths of the push's files begin."""
        with self.home.reached() as store:
            return Place(store, self._version(store, push).root)

    def commit_data(self, push: PushRecord, files: Sequence[PushedFile]) -> None:
        """List all files of the push in its version, at once, unless its data is listed already.

        The files have to be in the region's store, at its :meth:`place`.

        Raises:
            RegionFailed: one is not there, or was written for a table of another shape; or the
                push was given up. Nothing is listed then.
        """
        with self.home.reached() as store:
            RegionData(self._version(store, push), self.slice_s).list_data(files)

    def written(self, push: PushRecord) -> bool:
        """Return whether all of the push's data is there and was checked.

        Where it is not, but in another region of the push, it is copied from there, and so is a
        file that is damaged here.
        """
        with self.home.reached() as store, self._or_given_up(store, push) as version:
            data = self._data.setdefault(push.push_id, RegionData(version, self.slice_s))
            state = version.made()
            rows = version.rows(state)
            if rows is not None:
                done = data.is_whole(state, rows, self._others(push))
            else:
                done = any(
                    data.taken(state, *source, self._others(push)) for source in self._sources(push)
                )
            if done:
                del self._data[push.push_id]
            return done

    def _others(self, push: PushRecord) -> Iterator[Place]:
        """Where the push's files are in other regions, listed or not.

        Raises:
            RegionUnreachable: at the end, where one that is in the push could not be reached.
        """
        away = ""
        for peer in self._made(push):
            try:
                with peer.reached() as store:
                    root = PushedVersion.claimed(store, push, peer.name).root
            except RegionUnreachable as exc:
                away = "" if push.region(peer.name).closed else f"region {peer.name}: {exc}"
                continue
            yield Place(store, root)
        if away:
            raise SourceAway(away)

    def _made(self, push: PushRecord) -> Iterator[RegionStore]:
        """The stores of other regions in which the push has made its version."""
        made = {each.name for each in push.regions if each.table_version is not None}
        return (peer for peer in self.peers if peer.name in made)

    def _sources(self, push: PushRecord) -> Iterator[tuple[PushedVersion, TableState]]:
        """The push's versions in other regions that can be reached and have the data."""
        for peer in self._made(push):
            try:
                with peer.reached() as store:
                    source = PushedVersion.claimed(store, push, peer.name)
                    state = source.state()
            except RegionUnreachable:
                continue
            if state is not None and source.rows(state) is not None:
                yield source, state

    def statistics(self, push: PushRecord) -> Comparison | None:
        """Return how the version compares to the current one, None while its data is not there.

        Once it is the current one itself, it is compared to the one before.
        """
        with self.home.reached() as store:
            version = self._version(store, push)
            state = version.state()
            if state is None or version.rows(state) is None:
                return None
            before = Manifest(store, push.namespace, push.table, version_before(version))
            try:
                return Comparison(statistics_of(state), statistics_of(before.load()))
            except TableNotFound:
                return Comparison(statistics_of(state), None)

    # -------------------------------------------------------------------------------- followers

    def start_followers(self, push: PushRecord) -> None:
        """Tell the followers at the region's daemons that the version is on its way."""
        with self.home.reached() as store:
            number = self._version(store, push).number
            self.daemons.prepare(push.namespace, push.table, number, push.push_id)

    def lagging_followers(self, push: PushRecord) -> Sequence[str]:
        """Return the followers that are registered and alive and have not confirmed the version."""
        with self.home.reached() as store:
            number = self._version(store, push).number
            # Told again: a daemon may have begun anew since, and know nothing of it.
            self.daemons.prepare(push.namespace, push.table, number, push.push_id)
            return self.daemons.lagging(push.namespace, push.table, number)

    # ------------------------------------------------------------------------------ forth, back

    def swap(self, push: PushRecord) -> int | None:
        """Make the push's version the current one, and return which one was so before."""
        with self.home.reached() as store, self._or_given_up(store, push) as version:
            return swap(version)

    def roll_back(self, push: PushRecord) -> bool:
        """Make the version current that was so before the push's swap; see ``Region``."""
        with self.home.reached() as store:
            version = self._version(store, push)
            return not version.is_anothers() and go_back(version)

    def discard(self, push: PushRecord) -> bool:
        """Give the push's version up; return False where it is the current one."""
        with self.home.reached() as store:
            version = self._version(store, push)
            return version.is_anothers() or not forbid(version)

    @contextmanager
    def _or_given_up(self, store: ObjectStore, push: PushRecord) -> Iterator[PushedVersion]:
        """Give the push's version, and give it up where the block fails for good.

        Nobody asks the region for anything any more then: its files would stay for ever.
        """
        version = self._version(store, push)
        try:
            yield version
        except RegionFailed:
            of = store, version.namespace, version.table, version.number
            with suppress(StoreError, ManifestError):
                if may_count(*of) and not version.is_anothers():
                    forbid(version)
            raise

    def _version(self, store: ObjectStore, push: PushRecord) -> PushedVersion:
        return PushedVersion.claimed(store, push, self.name)
