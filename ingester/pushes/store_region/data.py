"""The data of a push in one region: listed, checked, or taken from a region that has it.

    files in the store ─▶ list_data: one commit
    listed             ─▶ whole: each file as it was written, and all rows there
    not listed, but in another region ─▶ taken: copied, checked, listed
    a file is damaged ─▶ fetched again, once, from a region that has it whole

Law of this file: nothing is listed that is not there, and what is copied is checked before it is
listed. Long work is done in slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ingester.pushes.regions import RegionFailed, RegionUnreachable
from ingester.pushes.store_region.data_check import DataCheck, FileFault, check_size, files_there
from ingester.pushes.store_region.data_copy import (
    Place,
    SourceAway,
    SourceFault,
    copy_missing,
    fetch_again,
)
from ingester.pushes.store_region.pushed_files import PushedFile
from ingester.pushes.store_region.pushed_version import PushedVersion
from ingester.pushes.store_region.shapes import ShapeClash, clash
from persist.manifest import TableState
from persist.table import TableDefinition


class RegionData:
    """The data of one push in one region. One thread at a time; made anew it checks anew."""

    def __init__(self, version: PushedVersion, slice_s: float) -> None:
        self._version = version
        self._slice_s = slice_s
        self._check = DataCheck(slice_s)
        self._fetched: set[str] = set()

    def list_data(self, files: Sequence[PushedFile]) -> None:
        """List the files in the version at once, unless its data is listed.

        Raises:
            RegionFailed: one is not there, or was written for another shape; nothing is listed.
        """
        version = self._version
        version.check_not_given_up()
        state = version.made()
        if version.rows(state) is not None:
            return
        there = files_there(version.store, version.root)
        try:
            for file in files:
                check_size(file, there)
            timed = [(file, there[file.path].at.isoformat()) for file in files]
            version.commit_data(state, timed)
        except (FileFault, ShapeClash) as exc:
            raise RegionFailed(str(exc)) from exc

    def is_whole(self, state: TableState, rows: int, others: Iterable[Place]) -> bool:
        """Return whether all that is listed was found whole; False where more is to be looked at.

        Args:
            others: Where the push's files are in other regions; looked at for a damaged one alone.

        Raises:
            RegionFailed: a file is missing or damaged everywhere, or rows are.
            RegionUnreachable: it is so here, and another region, which may have it, is away.
        """
        files = [PushedFile.of(add) for add in self._version.files(state)]
        return self._are_whole(files, rows, others)

    def taken(
        self,
        state: TableState,
        source: PushedVersion,
        its: TableState,
        others: Iterable[Place],
    ) -> bool:
        """Return whether the data was taken from another region; False where that does not give it,
        or more is to be copied.

        Args:
            state, its: The push's version here and there; there the data is listed.
            others: As for :meth:`is_whole`.

        Raises:
            RegionFailed: the tables of the two regions differ, or a file that was here is damaged
                everywhere.
            RegionUnreachable: as for :meth:`is_whole`.
        """
        version, rows = self._version, source.rows(its)
        assert rows is not None
        reason = clash(TableDefinition.of_state(its), TableDefinition.of_state(state))
        if reason is not None:
            raise RegionFailed(f"the data of another region does not fit: {reason} here")
        files = [PushedFile.of(add) for add in source.files(its)]
        there = files_there(version.store, version.root)
        places = Place(source.store, source.root), Place(version.store, version.root)
        try:
            if not copy_missing(*places, files, there, self._slice_s):
                return False
        except SourceFault:
            return False  # yet another region may have it whole
        if not self._are_whole(files, rows, others):
            return False
        self.list_data(files)
        return True

    def _are_whole(self, files: Sequence[PushedFile], rows: int, others: Iterable[Place]) -> bool:
        found = sum(file.rows for file in files)
        if found != rows:
            raise RegionFailed(f"the files of the push have {found} rows, and should have {rows}")
        store, root = self._version.store, self._version.root
        try:
            return self._check.all_whole(store, root, files, files_there(store, root))
        except FileFault as exc:
            if not self._fetch(exc, others):
                raise RegionFailed(str(exc)) from exc
            return False  # what was fetched is looked at as well

    def _fetch(self, fault: FileFault, others: Iterable[Place]) -> bool:
        """Put a file here anew from a region that has it whole; False where none has, or it was
        so put already: then the store does not keep it.
        """
        path = fault.file.path
        if path in self._fetched:
            return False
        here = Place(self._version.store, self._version.root)
        try:
            found = fetch_again(others, here, fault.file)
        except SourceAway as exc:
            raise RegionUnreachable(f"{fault}, and who may have it is away: {exc}") from exc
        self._fetched.add(path)
        return found
