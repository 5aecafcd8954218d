"""At the start a daemon checks that log and store belong together, and refuses with a reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pyarrow.flight as fl
import pytest
from structlog.testing import capture_logs

from ingester.config.settings import RecoverySettings
from ingester.recovery.marks import (
    NAME,
    DamagedMark,
    DataMark,
    Left,
    LostLog,
    OtherStore,
    Starting,
    begin,
    claim_body,
    judge,
    look,
    note_diskless_stop,
    note_epoch,
    note_stop,
    read_mark,
    write_mark,
)
from persist.manifest import EpochClaim, WriterIdentity, claim_epoch, last_claim, tell_stop
from persist.store import StoreMark, StoreUnsuitable, ensure_mark
from persist.store import read_mark as read_store_mark
from persist.store.local import LocalStore
from tests.drivers.daemon import Daemon, DaemonEnded
from tests.drivers.wire import Table, numbers, persist, put, rows
from wal import Recovered
from wal.objects import object_path

STORE = StoreMark(format=1, id="a" * 32)
MARK = DataMark(
    ingester_id="pod-0",
    store=STORE.id,
    store_url="s3://lake",
    epoch=4,
    incarnation="i4",
    stopped=False,
)
CLAIM = EpochClaim(epoch=4, incarnation="i4", at="noon", host="h", tells_stop=True)
WHOLE = Left(Path("data"), "pod-0", "s3://lake", MARK, 2, 4, STORE, CLAIM)
"""A daemon of epoch 4 was killed, and its log exists."""
NOTHING = WHOLE._replace(mark=None, segments=0, logged_epoch=0)
"""The same store with an empty data folder."""
AFTER = CLAIM.__class__(epoch=5, incarnation="i5", tells_stop=True)
"""A later claim by another process."""
STARTING = Starting(incarnation="i5", store=STORE.id, store_url="s3://lake")
replace = msgspec.structs.replace
ANEW = replace(STARTING, anew=True)


@pytest.mark.parametrize(
    ("left", "refused"),
    [
        pytest.param(WHOLE, None, id="killed"),
        pytest.param(WHOLE._replace(mark=None), None, id="no mark yet, and the log is there"),
        pytest.param(NOTHING, LostLog, id="killed, not mounted"),
        pytest.param(
            NOTHING._replace(claim=replace(CLAIM, stopped=True)), None, id="stopped, empty"
        ),
        pytest.param(
            NOTHING._replace(claim=replace(CLAIM, tells_stop=False)), None, id="before marks"
        ),
        pytest.param(NOTHING._replace(claim=None, store_mark=None), None, id="all new"),
        pytest.param(WHOLE._replace(segments=0, logged_epoch=0), LostLog, id="the wal is gone"),
        pytest.param(
            WHOLE._replace(mark=replace(MARK, stopped=True), segments=0, logged_epoch=0),
            None,
            id="stopped, the wal is gone",
        ),
        pytest.param(WHOLE._replace(logged_epoch=3), LostLog, id="an older wal was put back"),
        pytest.param(WHOLE._replace(claim=AFTER), LostLog, id="a later epoch from elsewhere"),
        pytest.param(
            WHOLE._replace(claim=replace(AFTER, stopped=True)), None, id="a later one has stopped"
        ),
        pytest.param(
            WHOLE._replace(claim=AFTER, mark=replace(MARK, starting=STARTING)),
            None,
            id="died on its way up",
        ),
        pytest.param(
            NOTHING._replace(mark=replace(MARK, epoch=0), claim=AFTER), LostLog, id="elsewhere"
        ),
        pytest.param(
            NOTHING._replace(mark=replace(MARK, epoch=0, starting=STARTING), claim=AFTER),
            None,
            id="the first start died",
        ),
        pytest.param(WHOLE._replace(store_mark=None), OtherStore, id="an empty store"),
        pytest.param(
            WHOLE._replace(store_mark=replace(STORE, id="b" * 32)), OtherStore, id="another store"
        ),
        pytest.param(WHOLE._replace(claim=None), OtherStore, id="a store of before this epoch"),
        pytest.param(
            WHOLE._replace(mark=None, store_mark=None, claim=None),
            OtherStore,
            id="before marks, and a store that never heard of the log",
        ),
        pytest.param(
            WHOLE._replace(mark=None, store_mark=None), None, id="before marks, its own store"
        ),
        pytest.param(NOTHING._replace(in_store=True), None, id="lost, and in the store"),
        pytest.param(
            WHOLE._replace(segments=0, logged_epoch=0, in_store=True),
            None,
            id="the wal is gone, and the store has log objects",
        ),
        pytest.param(
            NOTHING._replace(diskless=True), LostLog, id="a log on a disk is lost without one, too"
        ),
        pytest.param(
            WHOLE._replace(store_mark=None, in_store=True),
            OtherStore,
            id="log objects do not make it the right store",
        ),
    ],
)
def test_what_was_left_is_told_from_what_was_lost(
    left: Left, refused: type[Exception] | None
) -> None:
    if refused is None:
        judge(left, RecoverySettings())
        return
    with pytest.raises(refused) as error:
        judge(left, RecoverySettings())
    flag = "--accept-lost-log" if refused is LostLog else "--accept-other-store"
    assert flag in str(error.value)
    assert "data_dir data" in str(error.value)
    judge(left, RecoverySettings(accept_lost_log=True, accept_other_store=True))
    is_log = refused is LostLog
    other = RecoverySettings(accept_lost_log=not is_log, accept_other_store=is_log)
    with pytest.raises(refused):
        judge(left, other)


@pytest.mark.parametrize(
    ("left", "anew"),
    [
        pytest.param(WHOLE, False, id="killed"),
        pytest.param(
            WHOLE._replace(claim=AFTER, mark=replace(MARK, starting=STARTING)),
            False,
            id="died on its way up",
        ),
        pytest.param(NOTHING, True, id="an empty folder"),
        pytest.param(WHOLE._replace(logged_epoch=3), True, id="an older wal was put back"),
        pytest.param(
            WHOLE._replace(claim=AFTER, mark=replace(MARK, starting=ANEW)),
            True,
            id="an older wal was put back, and its first start died",
        ),
        pytest.param(
            WHOLE._replace(claim=AFTER, mark=replace(MARK, epoch=0, starting=ANEW), logged_epoch=5),
            True,
            id="an empty folder, whose first start died when its log was begun",
        ),
        pytest.param(
            WHOLE._replace(claim=replace(AFTER, stopped=True)),
            True,
            id="an older one was put back, and what was elsewhere since has stopped",
        ),
        pytest.param(WHOLE._replace(mark=None), True, id="the mark was moved aside"),
        pytest.param(WHOLE._replace(ingester_id="pod-1", claim=AFTER), True, id="another's folder"),
    ],
)
def test_a_log_that_may_lack_an_earlier_epoch_is_one_that_begins_anew(
    left: Left, anew: bool
) -> None:
    assert left.is_anew is anew


def test_a_data_directory_of_another_id_is_taken_with_a_word() -> None:
    for ingester_id, was in (("pod-1", ["pod-0"]), ("pod-0", [])):
        with capture_logs() as logs:
            judge(WHOLE._replace(ingester_id=ingester_id), RecoverySettings())
        warned = [each["was"] for each in logs if each["log_level"] == "warning"]
        assert warned == was


def test_a_store_is_marked_once_and_an_epoch_tells_its_stop(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert read_store_mark(store) is None
    made = ensure_mark(store)
    assert ensure_mark(LocalStore(tmp_path)) == made == read_store_mark(store)
    assert last_claim(store, "pod-0") is None
    body = {"incarnation": "x", "tells_stop": True}
    for number in (1, 2):
        assert claim_epoch(store, "pod-0", 1, body) == number
    found = last_claim(store, "pod-0")
    assert found is not None
    assert (found.epoch, found.incarnation, found.left_open) == (2, "x", True)
    assert last_claim(store, "pod-0", 3) is None
    tell_stop(store, "pod-0", 2, {})
    found = last_claim(store, "pod-0", 2)
    assert found is not None
    assert not found.left_open
    assert claim_epoch(store, "pod-0", 1, {}) == 3  # the record of a stop does not count as a claim
    for content in (b"{", b'{"format":2,"id":"x"}'):
        store.put("_store.json", content)
        with pytest.raises(StoreUnsuitable, match=r"_store\.json"):
            ensure_mark(store)


def test_a_start_without_room_for_a_segment_asks_for_no_log_of_its_own(tmp_path: Path) -> None:
    """A log that starts on a full disk has no segment of its epoch until there is room."""
    store, writer = LocalStore(tmp_path), WriterIdentity("pod-0", "i2", 2)
    mark = replace(MARK, store=ensure_mark(store).id, store_url=store.url, epoch=1)
    write_mark(tmp_path, mark)
    for number in (1, 2):
        claim_epoch(store, "pod-0", number, claim_body(store, f"i{number}"))
    before = WHOLE._replace(data_dir=tmp_path, mark=mark, claim=None)
    begin(before, store, writer.incarnation)

    def left(logged: int) -> Left:
        found = Left(tmp_path, "pod-0", store.url, read_mark(tmp_path), logged, logged, None, None)
        claim = last_claim(store, "pod-0", found.known_epoch)
        return found._replace(store_mark=read_store_mark(store), claim=claim)

    judge(left(1), RecoverySettings())  # killed: the log ends with the epoch before
    with pytest.raises(LostLog):
        judge(left(0), RecoverySettings())
    kept = (tmp_path / NAME).read_bytes()
    note_epoch(tmp_path, writer)
    with pytest.raises(LostLog):
        judge(left(1), RecoverySettings())
    judge(left(2), RecoverySettings())
    (tmp_path / NAME).write_bytes(kept)
    note_stop(tmp_path, store, writer)  # all rows are in files, and there never was a segment
    judge(left(0), RecoverySettings())


def test_a_data_directory_says_what_is_wrong_with_its_mark(tmp_path: Path) -> None:
    assert read_mark(tmp_path) is None
    write_mark(tmp_path, MARK)
    assert read_mark(tmp_path) == MARK
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    whole = (tmp_path / NAME).read_bytes()
    for content, said in (
        (whole[:20], "damaged"),
        (whole.replace(b'"format": 1', b'"format": 2'), "newer one"),
    ):
        (tmp_path / NAME).write_bytes(content)
        with pytest.raises(DamagedMark, match=said):
            read_mark(tmp_path)


def _refused(daemon: Daemon, **changed: object) -> str:
    with pytest.raises(DaemonEnded) as error:
        daemon.again(**changed).kill()
    assert error.value.code == 5
    return error.value.stderr.splitlines()[-1]


def test_a_daemon_finds_volumes_that_are_not_mounted(tmp_path: Path, table: Table) -> None:
    store, data = tmp_path / "store", tmp_path / "data"
    daemon = Daemon.start(data, store=f"file://{store}")
    with fl.connect(daemon.flight) as client:
        put(client, table, numbers(0, 3))
        persist(client, table)
        put(client, table, numbers(3, 2))
    daemon.kill()

    data.rename(tmp_path / "unmounted")
    data.mkdir()  # the empty mount point
    told = json.loads(_refused(daemon))
    assert told["runbook"] == "lost-log"
    assert str(data) in told["error"]
    # The folder stays empty, so that a disk moved to its name does not land inside it.
    assert list(data.iterdir()) == []
    data.rmdir()
    (tmp_path / "unmounted").rename(data)

    store.rename(tmp_path / "away")
    store.mkdir()  # the empty mount point
    told = json.loads(_refused(daemon))
    assert told["runbook"] == "other-store"
    assert str(store) in told["error"]
    assert list(store.iterdir()) == []  # nothing was committed to it
    store.rmdir()
    (tmp_path / "away").rename(store)

    with daemon.again() as daemon, fl.connect(daemon.flight) as client:
        assert rows(client, table) == [0, 1, 2, 3, 4]
        assert daemon.terminate() == 0
    # A clean log with another store or with an emptied store is refused too.
    assert '"other-store"' in _refused(daemon, store=f"file://{tmp_path}/elsewhere")
    # All rows are in files, so the disk may be deleted.
    shutil.rmtree(data)
    with daemon.again() as daemon, fl.connect(daemon.flight) as client:
        assert rows(client, table) == [0, 1, 2, 3, 4]
        daemon.kill()
    shutil.rmtree(data)
    with daemon.again(recovery__accept_lost_log="true") as daemon:
        accepted = [
            line for line in daemon.stderr_file.read_text().splitlines() if "accept" in line
        ]
        assert json.loads(accepted[-1])["setting"] == "recovery.accept_lost_log"


DISKLESS = replace(CLAIM, diskless=True)
NO_LOG = Recovered(
    segments=(),
    last_seq=0,
    highest_epoch=0,
    torn_bytes=0,
    torn_segments=0,
    torn_files=(),
    removed=(),
    foreign=(),
)


@pytest.mark.parametrize(
    ("claim", "lost"),
    [
        pytest.param(CLAIM, True, id="its log was on a disk"),
        pytest.param(DISKLESS, False, id="it kept none"),
        pytest.param(replace(CLAIM, stopped=True), False, id="it has stopped"),
        pytest.param(None, False, id="there was none"),
    ],
)
def test_only_a_log_on_a_disk_is_lost_with_it(claim: EpochClaim | None, lost: bool) -> None:
    assert NOTHING._replace(claim=claim, in_store=True).lost_disk is lost


def test_a_log_is_in_the_store_if_its_last_epoch_was_diskless_or_has_objects(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path / "store")
    ensure_mark(store)

    def seen() -> Left:
        return look(tmp_path / "data", "pod-0", store, NO_LOG)

    assert not seen().in_store
    body = claim_body(store, "i1")
    assert "diskless" not in body
    claim_epoch(store, "pod-0", 1, body)
    assert not seen().in_store
    store.put(object_path("pod-1", 1, 1), b"another ingester's")
    assert not seen().in_store
    store.put(object_path("pod-0", 1, 1), b"x")
    assert seen().in_store
    claim_epoch(store, "pod-0", 1, claim_body(store, "i2"))
    assert not seen().in_store, "the last epoch has none"
    claim_epoch(store, "pod-0", 1, claim_body(store, "i3", diskless=True))
    found = seen()
    assert found.in_store
    assert found.claim is not None
    assert (found.claim.epoch, found.claim.diskless) == (3, True)
    judge(found, RecoverySettings())


def test_a_start_without_a_disk_neither_reads_nor_writes_a_mark(tmp_path: Path) -> None:
    store, data = LocalStore(tmp_path / "store"), tmp_path / "data"
    data.mkdir()
    (data / NAME).write_text("{")
    left = look(data, "pod-0", store, NO_LOG, diskless=True)
    assert (left.mark, left.is_anew) == (None, True)
    assert begin(left, store, "i1") == ensure_mark(store).id
    writer = WriterIdentity("pod-0", "i1", claim_epoch(store, "pod-0", 1, claim_body(store, "i1")))
    note_diskless_stop(store, writer)
    assert (data / NAME).read_text() == "{"
    claim = last_claim(store, "pod-0")
    assert claim is not None
    assert claim.stopped


def test_an_epoch_that_ended_before_its_first_log_object_is_not_asked_for_a_log(
    tmp_path: Path,
) -> None:
    """It takes nothing before that object; the one before it is asked instead."""
    store = LocalStore(tmp_path / "store")
    ensure_mark(store)

    def seen() -> Left:
        return look(tmp_path / "data", "pod-0", store, NO_LOG)

    claim_epoch(store, "pod-0", 1, claim_body(store, "i1", opens=True))
    assert seen().claim is None, "nothing was ever taken"
    store.put(object_path("pod-0", 1, 1), b"x")
    claim_epoch(store, "pod-0", 1, claim_body(store, "i2", opens=True))
    claim_epoch(store, "pod-0", 1, claim_body(store, "i3", opens=True))
    found = seen()
    assert found.claim is not None
    assert (found.claim.incarnation, found.in_store, found.has_objects) == ("i1", True, True)
    judge(found, RecoverySettings())
    claim_epoch(store, "pod-0", 1, claim_body(store, "i4"))
    claim_epoch(store, "pod-0", 1, claim_body(store, "i5", opens=True))
    with pytest.raises(LostLog, match="epoch 4"):
        judge(seen(), RecoverySettings())


@pytest.mark.parametrize("known", [1, 2, 3])
def test_a_start_that_was_killed_before_its_first_log_object_leaves_the_data_directory_usable(
    tmp_path: Path, known: int
) -> None:
    """``known``: the last epoch whose log began in the data directory, object or not."""
    store = LocalStore(tmp_path / "store")
    mark = replace(MARK, store=ensure_mark(store).id, store_url=store.url, epoch=known)
    for epoch in (1, 2, 3):
        claim_epoch(store, "pod-0", 1, claim_body(store, f"i{epoch}", opens=True))
    store.put(object_path("pod-0", 1, 1), b"x")
    write_mark(tmp_path, replace(mark, incarnation=f"i{known}"))
    found = look(tmp_path, "pod-0", store, NO_LOG)._replace(segments=1, logged_epoch=known)
    judge(found, RecoverySettings())
    assert not found.is_anew
    with pytest.raises(LostLog):
        judge(found._replace(in_store=False, segments=0, logged_epoch=0), RecoverySettings())
