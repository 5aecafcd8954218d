"""In which order frozen buffers are persisted, and how many bytes of them at once.

    put ─▶ ``queue``: the partition's worker ─▶ begun ─▶ finished
             └ ``fair_queue``: tenants in turn    └ within ``byte_budget``

A partition always has the same worker, so its jobs are done in order, and those of different
partitions at the same time. The jobs themselves are the daemon's: nothing here retries, drops or
blocks one. It imports trio, so executors have no use of it. Start reading at ``queue``.
"""
