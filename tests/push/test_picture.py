"""The drawing of a push shows what its record says."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from ingester.pushes import rollback, wait
from ingester.pushes.record import PushRecord
from tests.push.picture import Mark, Span, drawing, lane
from tests.pushes.world import Life, ScriptedPanel, World, in_order, quick_store


def a_bad_push() -> PushRecord:
    """Return a push that waits a minute and is rolled back from its second region."""
    panel = ScriptedPanel()
    panel.say("pre_version_swap", wait("soon"), rollback("a & <b>"), region="b")
    with quick_store() as store:
        life = Life(World(("a", "b")), store, panel)
        life.begin(in_order("a", "b"))
        return life.run()


def test_each_region_has_its_statuses_over_time_and_what_hooks_said() -> None:
    record = a_bad_push()
    assert record.ended_at is not None
    drawn = lane(record, "b", record.ended_at)
    assert [span for span in drawn.spans if span.end_s > span.begin_s] == [
        Span("WAITING", 0.0, 60.0)
    ]
    assert drawn.spans[-1].status == "ABORTED"
    assert drawn.marks == (Mark(0.0, "hook", "wait"), Mark(60.0, "hook", "rollback"))
    assert [span.status for span in lane(record, "a", record.ended_at).spans][-2:] == [
        "SERVING",
        "ROLLED_BACK",
    ]


def test_the_drawing_is_the_same_each_time_and_takes_no_text_for_markup() -> None:
    record = a_bad_push()
    text = drawing("a push", "what it shows", [("One & only", record)])
    assert text == drawing("a push", "what it shows", [("One & only", record)])
    root = ET.fromstring(text)
    said = [each.text for each in root.iter() if each.tag.endswith("text")]
    assert "One & only" in said
    assert any("push p1" in each and "a & <b>" in each for each in said if each)
    assert {"a", "b", "SERVING", "WAITING"} <= set(said)
