"""The store log: operations in the object store before they are acknowledged, and in no file yet.

    write      local log ─▶ ``shipper`` ─▶ one log object for all tables ─▶ applied, acknowledged
    cleaning   rows in files ─▶ the log's segments go ─▶ ``cleaner`` deletes their log objects
    restart    ``fencing`` ends the logs of earlier epochs ─▶ ``reading`` ─▶ `ingester.recovery`

``opening`` makes the parts. `wal.objects` has the format. At most one object is begun per ``wal.store.interval``, unless
``wal.store.max_bytes`` wait; several are under way, and they are acknowledged in order. Nobody
writes, no object. An object is created conditionally, so that a process which was replaced cannot
create its next one: its successor has put a fence there.

``heartbeat`` is the sign of life for daemons that would adopt this log.

The room decides nothing about rows: it neither reads nor changes a payload. Start reading at
``shipper``, then ``fencing``.
"""
