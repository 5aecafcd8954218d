"""All faults: the alerts that each must fire, and the runbook entries that mend it.

No fault mends itself. An operator mends it between the fault's second and third yield, by the
runbook alone, except for what is mended ``elsewhere``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.alerts.background_faults import (
    push_stuck,
    replication,
    silent_replicator,
    transformer_hangs,
)
from tests.alerts.fault_steps import Stops
from tests.alerts.process_faults import (
    certificate,
    down,
    fenced,
    loop_stalled,
    not_adopted,
    tokens_not_read,
)
from tests.alerts.site import Site
from tests.alerts.store_faults import (
    damaged_file,
    disk_full,
    memory_high,
    oldest_row,
    saturated,
    store_log_stalled,
    unreachable_store,
)


class Fault(NamedTuple):
    """A fault and the alerts that fire during it.

    Attributes:
        follows: The runbook entries that its operator reads, each with the observed cause; None if
            the entry has only one.
        secure: Whether it requires a daemon with TLS and tokens.
        elsewhere: Whether the remedy is applied at another machine, and not by commands of an
            entry.
    """

    run: Callable[[Site], Stops]
    alerts: frozenset[str]
    follows: tuple[tuple[str, str | None], ...] = ()
    secure: bool = False
    elsewhere: bool = False


_AWAY = ("IngesterStoreAway", "IngesterPersistFailing")
_LEAD_TO_THE_STORE = (("persist-failing", "The store"), ("store-away", "Not mounted"))
FAULTS: dict[str, Fault] = {
    fault.run.__name__: fault
    for fault in (
        Fault(unreachable_store, frozenset(_AWAY), _LEAD_TO_THE_STORE),
        Fault(
            oldest_row,
            frozenset({*_AWAY, "IngesterOldestRow"}),
            (("oldest-row", "The store"), *_LEAD_TO_THE_STORE),
        ),
        Fault(
            store_log_stalled,
            frozenset({"IngesterStoreAway", "IngesterStoreLogStalled"}),
            (("store-log-stalled", "The store"), ("store-away", "Not mounted")),
        ),
        Fault(
            saturated,
            frozenset({*_AWAY, "IngesterSaturated"}),
            (("saturated", "The store"), *_LEAD_TO_THE_STORE),
        ),
        Fault(
            memory_high,
            frozenset({*_AWAY, "IngesterMemoryHigh"}),
            (("memory-high", "The store"), *_LEAD_TO_THE_STORE),
        ),
        Fault(
            disk_full, frozenset({"IngesterDiskFull"}), (("disk-full", "Something else fills it"),)
        ),
        Fault(
            certificate,
            frozenset({"IngesterCertificate"}),
            (("certificate", "It ends"),),
            secure=True,
        ),
        Fault(
            tokens_not_read,
            frozenset({"IngesterTokensNotRead"}),
            (("tokens-not-read", "Damaged"),),
            secure=True,
        ),
        Fault(
            loop_stalled,
            frozenset({"IngesterLoopStalled"}),
            (("loop-stalled", "It has recovered"),),
        ),
        Fault(
            down,
            frozenset({"IngesterDown"}),
            (("exit-codes-of-ingester-serve", "Killed"),),
        ),
        Fault(
            fenced,
            frozenset({"IngesterDown"}),
            (("exit-codes-of-ingester-serve", "Code 6"), ("fenced", None)),
        ),
        Fault(
            replication,
            frozenset({"IngesterReplicationTableSetAside", "IngesterReplicationSlotLarge"}),
            (("table-set-aside", None), ("slot-holds-log", None)),
            elsewhere=True,
        ),
        Fault(
            silent_replicator,
            frozenset({"IngesterReplicationUnheard"}),
            (("replicator-unheard", None),),
            elsewhere=True,
        ),
        Fault(
            transformer_hangs,
            frozenset({"IngesterTransformerHangs"}),
            (("transformer-hangs", "It never returns"),),
        ),
        Fault(push_stuck, frozenset({"IngesterPushStuck"}), (("push-stuck", "Nobody leads it"),)),
        Fault(
            not_adopted,
            frozenset({"IngesterNotAdopted"}),
            (("not-adopted", "Another store's log"),),
        ),
        Fault(
            damaged_file,
            frozenset({"IngesterInternalErrors"}),
            (("internal-error", "A damaged file"), ("damaged-file", None)),
        ),
    )
}
