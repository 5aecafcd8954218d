"""Files of a table rewritten as fewer, sorted ones, beside the daemons that write to it.

    `plan`: groups of files ─▶ `run`: rounds, waves, commits ─▶ `report`
                                   │  runner
                                   ▼
                               `task`: the rows of one group as new files

A runner runs the task for each group: `in_process` does it here, one group after another within a
memory limit; ``ingester.spark.compaction`` does it on Spark's executors. A group is replaced in one
version or not at all, and nothing is deleted. Start reading at `run`.
"""

from persist.compaction.in_process import InProcess as InProcess
from persist.compaction.plan import TARGET_FILE_BYTES as TARGET_FILE_BYTES
from persist.compaction.plan import FileGroup as FileGroup
from persist.compaction.plan import FileSelection as FileSelection
from persist.compaction.plan import plan_compaction as plan_compaction
from persist.compaction.plan import plan_move as plan_move
from persist.compaction.plan import plan_rewrite as plan_rewrite
from persist.compaction.plan import plan_tiers as plan_tiers
from persist.compaction.report import CompactionReport as CompactionReport
from persist.compaction.report import Progress as Progress
from persist.compaction.run import RewriteRefused as RewriteRefused
from persist.compaction.run import Rewriting as Rewriting
from persist.compaction.task import RewriteTask as RewriteTask
from persist.compaction.task import Rewritten as Rewritten
from persist.compaction.task import actions_of as actions_of
