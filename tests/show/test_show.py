"""The short form: one fault of each kind within a minute."""

from __future__ import annotations

import pytest

from tests.show.campaign import Plan, run
from tests.show.faults import FAULTS


@pytest.mark.slow
def test_each_acknowledged_row_is_there_once_after_a_fault_of_each_kind() -> None:
    plan = Plan(
        seconds=15.0,
        every_s=3.0,
        full_s=1.0,
        share=0.1,
        writers=4,
        readers=1,
        max_age="3s",
        upkeep_s=0.0,
        seed=3,
    )
    verdict = run(plan, print)
    assert verdict.faults == [], verdict.lines
    assert {name for _, name in verdict.watch.faults} == set(FAULTS)
    assert verdict.load is not None
    assert all(source.acknowledged > 0 for source in verdict.load.writers)
    keyed = verdict.load.keyed
    assert keyed.blocks.ledger.acknowledged > 0
    assert keyed.looks > 0
    assert len(keyed.replica.owners) > 1, "the keyed table has moved to another owner"
