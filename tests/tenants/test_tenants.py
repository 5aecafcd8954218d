"""The short form: a quarter of a minute. The program compares speeds, on a quiet machine."""

from __future__ import annotations

import pytest

from tests.tenants.campaign import Plan, run


@pytest.mark.slow
def test_a_hostile_tenant_harms_nobody() -> None:
    verdict = run(Plan(seconds=12.0, seed=3, elsewhere=False, alone=False), print)
    assert verdict.faults == [], verdict.lines
