"""A durable streaming ingester: Arrow batches in over Flight, sorted Parquet out to object storage.

Four paths lead through it. A name in double backquotes is a package below, with its own front page.

    write     ``server/flight`` ─▶ ``write`` (─▶ ``tables``) ─▶ `wal` ─▶ ``buffer``
              A gRPC thread validates a batch, splits it by partition, encodes the log record and
              admits it by its size; small batches that wait together become one record. Whatever
              waits for the log is written and synced together; then it is acknowledged. The event
              loop applies it to the buffers in log order, before any query that starts afterwards.
              At level ``store`` it is also put into the store first (``store_log``).

    flush     ``buffer`` ─▶ ``flush`` ─▶ `persist` ─▶ ``tables`` ─▶ ``buffer``
              A partition's buffer is frozen by age, size or memory pressure. Workers sort, encode
              and upload it. A commit to the table's manifest makes them visible; the same
              step releases the buffer. Then log segments that are no longer needed are deleted.

    query     ``server/flight`` ─▶ ``query`` ─▶ ``buffer``, `persist`
              A snapshot fixes a manifest version and a prefix of every buffer. The client pulls the
              rows part by part, from wherever they are by then.

    restart   ``daemon`` ─▶ `wal`, `persist` ─▶ ``recovery`` ─▶ ``tables``, ``buffer``
              A start checks the log, claims a new epoch in the store and commits it to every table
              in the log, which fences its predecessor. Replay restores the rows that no file has,
              from the log on disk and from the one in the store.

Layers, from the top; a package imports only from lower ones (``.importlinter``):

    ``cli``, ``demo``                                   for people
    ``daemon``                                          one process: assembled, started, stopped
    ``server``                                          Flight, HTTP, auth, TLS
    ``replication``, ``recovery``, ``sql``
    ``write``, ``query``, ``flush``, ``maintenance``, ``compaction``, ``copies``, ``publishing``
                                                        kinds of work
    ``tables``, ``registering``                         the catalogue, each manifest's commit gate
    ``buffer``                                          unflushed rows
    ``dml``                                             operations and their log records
    ``store_log``                                       the log in the object store
    ``origins``, ``observability``, ``quotas``, ``reports``
    ``schema``                                          columns and types, the conversion into them
    ``config``
    ``memory``, ``errors``, ``transform``, ``conversion``, ``shown_text``, ``secret_texts``,
    ``time_texts``, ``value_texts``                     dates and columns as text
    ``protobuf``                                        messages as bytes

Beside the daemon, which they never import: ``client``; on it ``followers`` (local copies of
tables), ``postgres`` and ``spark``, which reads a version's files from the store and asks daemons
only for buffered rows; and ``pushes``, which replaces whole tables (``lifecycle`` is its former
name). ``copies`` loads a whole table into files, without the log; ``publishing`` shows tables to
other engines, and ``registering`` names them in an Iceberg catalogue. `wal` and `persist` are
packages of their own and know nothing of the daemon.
``__main__`` is ``python -m ingester``.

Start reading at :mod:`ingester.write`.
"""

__version__ = "0.2.0"
