"""The log's options, and what it reports about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from wal.format import SEAL_RECORD_BYTES, SEGMENT_HEADER_BYTES

MIN_SEGMENT_BYTES = 4096


@dataclass(frozen=True)
class LogSettings:
    """How the log syncs and rotates.

    - `fsync` "commit": nothing is applied or answered before it is synced. "interval": after the
      write; a sync follows within `fsync_interval_s`. "off": syncs only at the end of a segment.
    - `segment_bytes`: a segment is sealed when the next entry does not fit.
    - `segment_age_s`: a segment that holds an operation is sealed at this age, so that a quiet log
      does
      not keep old operations for ever.
    """

    fsync: Literal["commit", "interval", "off"] = "commit"
    fsync_interval_s: float = 0.1
    segment_bytes: int = 64 << 20
    segment_age_s: float = 300.0

    def __post_init__(self) -> None:
        if self.segment_bytes < MIN_SEGMENT_BYTES:
            raise ValueError(
                f"segment_bytes is {self.segment_bytes}, must be at least {MIN_SEGMENT_BYTES}"
            )
        if self.fsync not in ("commit", "interval", "off"):
            raise ValueError(f'fsync is {self.fsync!r}, must be "commit", "interval" or "off"')
        assert SEGMENT_HEADER_BYTES + SEAL_RECORD_BYTES < MIN_SEGMENT_BYTES


class SegmentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one segment. `last_seq` is ``first_seq - 1`` if it holds no operation.

    `records` counts all but the seal, `operations` those with a sequence. `bytes` is the end of the
    last good record. `state` is "sealed", "open", "torn", "headerless", "damaged" or "newer";
    `problem` explains the last four.
    """

    number: int
    file: str
    ingester_id: str
    incarnation: str
    epoch: int
    first_seq: int
    last_seq: int
    records: int
    operations: int
    bytes: int
    state: str
    problem: str | None = None


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """The log's content after recovery, all of it durable and sealed.

    `last_seq` and `highest_epoch` are 0 if the log is empty. `torn_bytes` were cut off;
    `torn_files` keep them unless they were zeros. `removed` are segments whose header was never
    complete. `foreign` are unknown names, which were left alone.
    """

    segments: tuple[SegmentFacts, ...]
    last_seq: int
    highest_epoch: int
    torn_bytes: int
    torn_segments: int
    torn_files: tuple[str, ...]
    removed: tuple[str, ...]
    foreign: tuple[str, ...]


class LogStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The log at this moment. Counts are since the start of this process."""

    segments: int
    bytes: int
    open_segment: int
    open_bytes: int
    last_seq: int
    pending: int
    pending_bytes: int
    records: int
    groups: int
    syncs: int
    last_sync_s: float
    rotations: int
    created_segments: int
    failed_groups: int
