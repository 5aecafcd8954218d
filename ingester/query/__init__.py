"""Answers: a snapshot of one table, streamed part by part.

    ``ticket`` ─▶ ``queries`` ─▶ ``snapshot`` ─▶ ``stream`` ─▶ ``reader`` ─┬▶ ``row_group_scan``
     checked      opened        a version and     pulled by    where rows   └▶ ``merge_reader``
                                buffers, pinned   the client   lie by then      (keyed tables)

A long filter is read piece by piece (``long_filter``), and counted (``filter_room``). ``queries``
opens an answer when the log has caught up, so that all that is acknowledged is applied
(``ingester.server.portal``). It takes a ``snapshot`` (``version_tail`` where a version is named)
and counts it among those under way (``answer_places``). ``stream`` is pulled by the client's flow
control; for each part it has a turn of ``fair_scheduler``, so that few answers compute at a time,
and each namespace has its share (``fair_shares``); ``cpu_account`` counts what an answer has used,
and ends it at ``query.max_cpu``. ``reader`` goes from place to place: files through
``row_group_scan`` and ``row_group_cache``, buffers, and what ``buffer_spill`` has kept of buffers
that were let go under a reader. ``slicer`` cuts what matches into parts (``parts``), which
``ingester.server.flight.get`` sends. In a keyed table ``merge_reader`` merges files and buffers by
``merge_on_read``, and ``result_spill`` keeps the merged rows until they are sent, on disk where
they are many. ``read_context`` is what these readers of one answer share.

Followers come by ``live_feed``: a call waits there on an event and then has an answer, which
``live_tail`` takes of buffers, and of those that were let go a while ago; ``live_position`` says
whether all is there that is asked for, ``live_takeover`` whether rows went to another daemon,
``live_groups`` how much of it makes an answer, cut between two operations, and ``live_reader``
reads it. ``live_followers`` knows who calls, and tells which versions of a table are coming.

A reader holds positions and no rows between two parts; one of a keyed table also holds the keys of
its buffered rows, and merged rows where they are few or the disk does not take them; all of that
is counted. Nothing here writes, and a client that stands still holds nobody up. Start reading at
``queries``, then ``reader``.
"""
