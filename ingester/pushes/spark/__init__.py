"""Pushes from Spark: ``push`` writes a frame as the next generation of a table, in every region.

    ``api`` ─▶ ``frames``: does it fit the tables? ─▶ the push starts
       │
       ├─▶ ``feed``: a thread leads it, or follows its leader
       └─▶ ``run`` ─▶ ``job`` ─▶ on executors: ``task``
                └─▶ commits the files in the generations of the regions

``result`` is the outcome; ``__main__`` is the job ``python -m ingester.spark.push``.

Nothing here swaps a generation or calls a hook: that is the leader's work. No row is written twice,
whichever process dies, and a region that is unreachable during the job copies its files from
another one. Executors import only ``task``. Start reading at ``run``.
"""

from ingester.pushes.config import PushConfig as PushConfig
from ingester.pushes.config import RegionSettings as RegionSettings
from ingester.pushes.config import read_push_config as read_push_config
from ingester.pushes.spark.api import push as push
from ingester.pushes.spark.result import PushFailed as PushFailed
from ingester.pushes.spark.result import PushProgress as PushProgress
from ingester.pushes.spark.result import PushRefused as PushRefused
from ingester.pushes.spark.result import PushResult as PushResult
from ingester.pushes.spark.result import RegionResult as RegionResult
