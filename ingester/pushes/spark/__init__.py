"""A frame as the next version of a table, in every region: ``push``, and the job of that name.

    ``api`` ─▶ ``shape``: does it go together with the tables? ─▶ the push is begun
       │
       ├─▶ ``watch``: a thread leads it (``leadership``), or looks at what its leader keeps
       └─▶ ``run`` ─▶ ``job`` ─▶ ``arrange``, then on executors ``task``: ``keys``, ``places``
                ├─▶ ``data_list``: which files count
                └─▶ ``committing``: into the regions' versions

``result`` is what comes of it, ``null_counts`` counts what manifests do not know, ``__main__`` is
``python -m ingester.pushes.spark``.

It swaps nothing and asks no hook: that is ``ingester.pushes``'s, which leads pushes. No row is
written twice, whoever dies, and a region that is away while the rows are written gets them from
another one. Start reading at ``run``.
"""

from ingester.pushes.push_config import PushConfig as PushConfig
from ingester.pushes.push_config import RegionSettings as RegionSettings
from ingester.pushes.push_config import read_push_config as read_push_config
from ingester.pushes.spark.api import push as push
from ingester.pushes.spark.result import PushFailed as PushFailed
from ingester.pushes.spark.result import PushProgress as PushProgress
from ingester.pushes.spark.result import PushRefused as PushRefused
from ingester.pushes.spark.result import PushResult as PushResult
from ingester.pushes.spark.result import RegionResult as RegionResult
