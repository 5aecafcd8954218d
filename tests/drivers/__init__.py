"""Drivers that tests of several folders share; this package contains no tests.

- Processes: ``daemon`` starts a real daemon, ``warm`` and ``forking`` make its start cheap,
  ``shared_daemon`` has the fixtures of one daemon that many modules share, ``s3_server`` starts an
  S3 server that injects faults, ``ports`` reserves ports before they are used.
- The wire: ``wire`` speaks the protocol without the client library, ``syncing`` builds a
  replication client on top.
- One table without a daemon: ``stage``.
- Rows: ``mixed_rows`` of most types, ``small_rows`` for batches of one row.
- Time and disks: ``waiting`` polls where no event exists, ``unsynced`` models a power cut.
"""
