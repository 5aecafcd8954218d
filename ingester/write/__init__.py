"""The write path: from a received batch to its acknowledgement.

    ``streams``          opens a ``stream`` of batches of one schema into one table
       ``plan``          how batches of the schema become operations of the table
       ``metadata``      the sequence and checkpoint that a client sends with a batch
       ``transform``     runs users' classes on the batches of tables that have any
    ``sender``           sends each batch of the stream, with or without an origin:

       small    ``admission`` ─▶ log, as a draft ─▶ ``coalescer``, in the thread that writes the log
       other    ``operation_maker`` ─▶ ``admission`` ─▶ log

    ``dedup``            decides on the loop about a batch that may be a repeat
    ``operation_log``    queues operations for `wal`, and applies durable groups to the buffers
    ``acknowledgement``  follows an operation to its answer: counted, traced, released, answered

    ``admission`` admits a batch by its bytes, ``partition_room`` by the partitions that it opens.
    ``checkpoints`` answers sources that ask for their state, or store one without rows.

Small batches of one schema that wait together become one record of the log that stands for many
operations, each with its own sequence. Any other batch is prepared by the thread that read it. A
sequence above everything that its origin has is begun in that thread, too; ``dedup`` decides about
any other, and leaves out rows that are in files already. At a stream's first sequence its origin is
taken over (``ingester.tables.origin_takeover``).

Work per byte is done before the event loop, except that a buffer merges small chunks and that a
repeated batch of which a part is in files is laid out again. Nothing reaches a buffer that is not
on disk. After a refusal nothing later of the same stream is applied. ``opening`` makes the parts of
the room. Start reading at ``sender``, then ``stream``.
"""
