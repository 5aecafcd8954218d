"""What the tests of many rooms drive the product with; nothing in here is a test.

- Processes: ``daemon`` starts a real daemon, ``warm`` and ``forking`` make its start cheap,
  ``shared_daemon`` has the fixtures of one daemon that many modules share, ``s3_server`` starts an
  S3 server that can show faults, ``ports`` hands out ports that are known beforehand.
- The wire: ``wire`` speaks it with nothing of ours, ``syncing`` is a replication client on top.
- One table without a daemon: ``stage``.
- Rows: ``mixed_rows`` of most types, ``small_rows`` for batches of one row.
- Time and disks: ``waiting`` for what has no event, ``unsynced`` for what a power cut leaves.
"""
