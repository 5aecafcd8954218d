"""Answers: a snapshot of one table, streamed part by part.

    ``ticket`` ─▶ ``queries`` ─▶ ``snapshot`` ─▶ ``stream`` ─▶ ``reader`` ─▶ ``parts``
     parsed        opens          a version and    pulled by     reads files,   cut to
                                  pinned buffers   the client    buffers, ...   size

``ticket`` parses a request and refuses it if it is malformed or over a limit of ``[query]``.
``queries`` opens an answer once everything acknowledged is applied. It takes a ``snapshot``
(``version_tail`` for a named version), counts it and creates a ``stream``, which the client pulls.
Each part is made in a turn of ``fair_scheduler``, which limits how many answers compute at a time,
gives every namespace its share, and ends an answer at ``query.max_cpu``.

``reader`` reads files by row group through ``row_group_cache``, buffers, and what ``spill`` kept
of buffers that were released meanwhile. ``merge_reader`` does the same for keyed tables, where
the newest row of a key wins. ``parts`` filters rows and cuts them. ``read_context`` is what the
readers of one answer share.

Followers use ``live_feed``: a call waits for an event and then returns the operations after a
position. ``live_tail`` supplies them from buffers and recently released buffers, ``live_groups``
chooses how many make one answer, and ``live_followers`` knows which followers a table has and
which table versions are announced to them.

A reader holds a position and no rows between two parts; the exceptions for keyed tables are
counted. Nothing here writes, and a client that stops reading blocks no other. ``opening``
makes the parts of the room and passes them their settings. Start reading at ``queries``, then
``reader``.
"""
