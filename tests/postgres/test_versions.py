"""The oldest and the newest PostgreSQL: a copy, changes, and equality."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drivers.daemon import Daemon
from tests.postgres.cluster import Cluster
from tests.postgres.kinds import ALTERED, MEMBERS, MOVES, SCHEMAS, VALUES
from tests.postgres.replicating import replicating
from tests.postgres.stories import Phase, Story, tell
from tests.postgres.versions import NEWEST, OLDEST

SOME = ("shifted", "swapped", "exchanged", "again", "constant", "volatile", "labelled")
"""The stories that PostgreSQL 10 supports; it does not stream TRUNCATE or generated columns."""

pytestmark = pytest.mark.parametrize("cluster", [OLDEST, NEWEST], indirect=True)


def test_stories_end_well_on_other_versions(
    cluster: Cluster, shared: Daemon, tmp_path: Path
) -> None:
    stories = [each for each in (*MOVES, *MEMBERS, *ALTERED, *VALUES) if each.name in SOME]
    assert len(stories) == len(SOME)
    cluster.run(*SCHEMAS)
    version = "v" + cluster.run("SHOW server_version_num")[0][0]
    with replicating(cluster.dsn, shared.flight, version, tmp_path) as replicator:
        told = tell(cluster, lambda: shared, version, stories)
        assert told.wrong == {}, replicator.said[-3000:]
        # Committed rows survive a kill of the server, and replication resumes.
        cluster.restart()
        cluster.run("UPDATE constant SET c = 8 WHERE id = 1")
        last = [story for story in stories if story.name == "constant"]
        told = tell(cluster, lambda: shared, version, [_only_expected(last[0])])
        assert told.wrong == {}, replicator.said[-3000:]


def _only_expected(story: Story) -> Story:
    return Story(story.name, [Phase((), story.phases[-1].expected)])
