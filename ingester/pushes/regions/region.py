"""A region of pushes: a store, the daemons that serve from it, and the peers to copy data from.

    open_regions(settings) ─▶ StoreRegion each      what drivers use
    region.definition(push) ─▶ files below region.place(push) ─▶ region.commit_data(push, files)

The store alone tells what was done, so each call may be repeated by any process. A call fails for
good only if it has changed nothing; a generation with invalid data or a refused swap is given up.
Long calls work in slices and are repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from ingester.pushes.config import RegionSettings
from ingester.pushes.hooks import Comparison, VersionStatistics
from ingester.pushes.record import PushRecord
from ingester.pushes.regions.data import SLICE_S, GenerationFolder, RegionData, SourceUnreachable
from ingester.pushes.regions.generation import (
    PushedGeneration,
    check_latest,
    forbid,
    generation_before,
    go_back,
    replaced,
    swap,
    was_current,
)
from ingester.pushes.regions.shapes import PushedFile
from ingester.pushes.regions.store import RegionDaemons, RegionStore
from ingester.pushes.regions.tables import ready_table, replay_version
from ingester.pushes.tasks import Created, RegionFailed, RegionUnreachable
from persist.manifest import Manifest, ManifestError, TableNotFound, TableState, may_count
from persist.store import ObjectStore, StoreError
from persist.table import TableDefinition, read_schema


def open_regions(settings: Iterable[RegionSettings]) -> dict[str, StoreRegion]:
    """Return the regions by name, each with the others as peers. Nothing is contacted.

    Raises:
        PushConfigError: a store is invalid.
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
    """A :class:`ingester.pushes.tasks.Region`. Calls block, and come one at a time.

    Attributes:
        home: the region's own store.
        peers: the stores of other regions, to copy data from.
        slice_s: how long one call checks or copies files.
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

    # ---------------------------------------------------------------------- generation and data

    def register_schema(self, push: PushRecord) -> None:
        """Check the push's columns against the table's, and add those that it lacks."""
        self.home.check()
        with self.home.reached() as store:
            ready_table(store, push)

    def create_version(self, push: PushRecord) -> Created:
        """Create the push's generation, empty and not current; create a missing table first."""
        if push.region(self.name).table_version is None:
            self.home.check()
        with self.home.reached() as store:
            version = self._version(store, push)
            version.check_not_given_up()
            if version.state() is None:
                self._create(store, push, version)
            version.made()
            return Created(version.number, generation_before(version))

    def _create(self, store: ObjectStore, push: PushRecord, version: PushedGeneration) -> None:
        state = ready_table(store, push)
        newest = state.version
        if push.plan.replay_since == "start":
            told = self.daemons.persist(push.namespace, push.table)
            state = ready_table(store, push)
            # An answer about another generation says nothing about this state.
            newest = min(told.get(state.table_version, state.version), state.version)
        version.create(state, replay_version(store, push, state, newest))

    def definition(self, push: PushRecord) -> TableDefinition:
        """Return the definition of the generation that the push's files are written for."""
        with self.home.reached() as store:
            return TableDefinition.of_state(self._version(store, push).made())

    def place(self, push: PushRecord) -> GenerationFolder:
        """Return the folder of the generation; the paths of the push's files are relative to it."""
        with self.home.reached() as store:
            return GenerationFolder(store, self._version(store, push).root)

    def commit_data(self, push: PushRecord, files: Sequence[PushedFile]) -> None:
        """Commit all files of the push at once, unless its data is committed.

        The files have to exist at :meth:`place`.

        Raises:
            RegionFailed: a file is missing or was written for another shape, or the push was given
                up. Nothing is committed.
        """
        with self.home.reached() as store:
            RegionData(self._version(store, push), self.slice_s).commit(files)

    def written(self, push: PushRecord) -> bool:
        """Return whether all of the push's data is committed and checked.

        Missing data and damaged files are copied from another region of the push.
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

    def _others(self, push: PushRecord) -> Iterator[GenerationFolder]:
        """Yield the push's folders in other regions.

        Raises:
            SourceUnreachable: at the end, if a region of the push did not answer.
        """
        unreachable = ""
        for peer in self._made(push):
            try:
                with peer.reached() as store:
                    root = PushedGeneration.claimed(store, push, peer.name).root
            except RegionUnreachable as exc:
                if not push.region(peer.name).closed:
                    unreachable = f"region {peer.name}: {exc}"
                continue
            yield GenerationFolder(store, root)
        if unreachable:
            raise SourceUnreachable(unreachable)

    def _made(self, push: PushRecord) -> Iterator[RegionStore]:
        """The stores of other regions in which the push has created its generation."""
        made = {each.name for each in push.regions if each.table_version is not None}
        return (peer for peer in self.peers if peer.name in made)

    def _sources(self, push: PushRecord) -> Iterator[tuple[PushedGeneration, TableState]]:
        """The push's generations in other reachable regions with the data."""
        for peer in self._made(push):
            try:
                with peer.reached() as store:
                    source = PushedGeneration.claimed(store, push, peer.name)
                    state = source.state()
            except RegionUnreachable:
                continue
            if state is not None and source.rows(state) is not None:
                yield source, state

    def previous(self, push: PushRecord) -> int:
        """Return the current generation, or the one before if the push's is current."""
        with self.home.reached() as store, self._or_given_up(store, push) as version:
            if not was_current(version):
                check_latest(version)
            return generation_before(version)

    def replaced(self, push: PushRecord) -> str:
        """Return why the region cannot be rolled back, if a later push has replaced this one."""
        with self.home.reached() as store:
            version = self._version(store, push)
            return "" if version.is_anothers() else replaced(version)

    def statistics(self, push: PushRecord) -> Comparison | None:
        """Return the generation's statistics beside the current one's; None before its data.

        Once current itself, it is compared to the previous one.
        """
        with self.home.reached() as store:
            version = self._version(store, push)
            state = version.state()
            if state is None or version.rows(state) is None:
                return None
            before = Manifest(store, push.namespace, push.table, generation_before(version))
            try:
                return Comparison(statistics_of(state), statistics_of(before.load()))
            except TableNotFound:
                return Comparison(statistics_of(state), None)

    # -------------------------------------------------------------------------------- followers

    def start_followers(self, push: PushRecord) -> None:
        """Announce the generation to the followers at the region's daemons."""
        with self.home.reached() as store:
            number = self._version(store, push).number
            self.daemons.prepare(push.namespace, push.table, number, push.push_id)

    def lagging_followers(self, push: PushRecord) -> Sequence[str]:
        """Return the live followers that have not confirmed the generation."""
        with self.home.reached() as store:
            number = self._version(store, push).number
            # Announced again: a daemon may have restarted since.
            self.daemons.prepare(push.namespace, push.table, number, push.push_id)
            return self.daemons.lagging(push.namespace, push.table, number)

    # ------------------------------------------------------------------------ swap and rollback

    def swap(self, push: PushRecord) -> int | None:
        """Make the push's generation current, and return the previous one."""
        with self.home.reached() as store, self._or_given_up(store, push) as version:
            return swap(version)

    def roll_back(self, push: PushRecord) -> bool:
        """Make the generation before the push's swap current again; see ``Region``."""
        with self.home.reached() as store:
            version = self._version(store, push)
            return not version.is_anothers() and go_back(version)

    def discard(self, push: PushRecord) -> bool:
        """Give up the push's generation; return False if it is current."""
        with self.home.reached() as store:
            version = self._version(store, push)
            return version.is_anothers() or not forbid(version)

    @contextmanager
    def _or_given_up(self, store: ObjectStore, push: PushRecord) -> Iterator[PushedGeneration]:
        """Yield the push's generation, and give it up if the block fails for good.

        Nothing more is asked of the region then, so its files would never be deleted.
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

    def _version(self, store: ObjectStore, push: PushRecord) -> PushedGeneration:
        return PushedGeneration.claimed(store, push, self.name)


def statistics_of(state: TableState) -> VersionStatistics:
    """Return rows, bytes and the nulls of each column, by the manifest alone.

    A file older than a column has it as null in every row. A count is None if a file that has the
    column has no statistics of it.
    """
    had = {schema_id: read_schema(schema).names for schema_id, schema in state.schemas.items()}
    columns = [] if state.current_schema is None else had[state.current_schema.schema_id]
    nulls: dict[str, int | None] = dict.fromkeys(columns, 0)
    for add in state.files.values():
        for column in columns:
            known = nulls[column]
            if known is None:
                continue
            stats = add.stats.get(column)
            if stats is not None and stats.nulls is not None:
                nulls[column] = known + stats.nulls
            elif column not in had[add.schema_id]:
                nulls[column] = known + add.rows
            else:
                nulls[column] = None
    return VersionStatistics(state.table_version, state.rows, state.bytes, nulls)
