"""The store log: operations in the object store before they are acknowledged, and in no file yet.

    write      local log ─▶ ``shipper`` ─▶ one log object for all tables ─▶ applied, acknowledged
    cleaning   rows in files ─▶ the log's segments go ─▶ ``cleaner`` deletes their log objects
    restart    ``fencing`` ends the logs of earlier epochs ─▶ ``reading`` ─▶ `ingester.recovery`

At most one object is begun per ``wal.store.interval``, unless ``wal.store.max_bytes`` wait. Several
are under way, and they are acknowledged in order. While nobody writes, none is made. An object is
created conditionally: a process that was replaced cannot create its next one, because its successor
has put a fence there (``creating``). `wal.objects` has the format; ``opening`` makes the parts,
with ``hooks`` to other rooms.

``heartbeat`` is the sign of life for daemons that would adopt this log; ``inspection`` has the
operator's tools.

The room decides nothing about rows: it neither reads nor changes a payload. Start reading at
``shipper``, then ``fencing``.
"""
