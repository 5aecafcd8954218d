"""Replace a table atomically with the rows of a frame: the users' name of `ingester.pushes.spark`.

``from ingester.spark.push import push`` in a job of your own; ``python -m ingester.spark.push`` or
``spark-submit …/ingester/spark/push.py`` as a job by itself.
"""

import sys

from ingester.pushes.spark import PushConfig as PushConfig
from ingester.pushes.spark import PushFailed as PushFailed
from ingester.pushes.spark import PushProgress as PushProgress
from ingester.pushes.spark import PushRefused as PushRefused
from ingester.pushes.spark import PushResult as PushResult
from ingester.pushes.spark import RegionResult as RegionResult
from ingester.pushes.spark import RegionSettings as RegionSettings
from ingester.pushes.spark import push as push
from ingester.pushes.spark import read_push_config as read_push_config

if __name__ == "__main__":
    from ingester.pushes.spark.__main__ import main

    sys.exit(main())
