"""Limits the use of a daemon by a namespace: quotas where they are set, fair shares everywhere.

    ``fair_shares``    the rule that refuses the namespaces above an equal share first
    ``token_bucket``   an average rate; larger amounts than one second's worth are owed
    ``use``            what one namespace uses now, and its quotas
    ``namespaces``     all namespaces; parts ask here before they take more, and are refused here

Bytes of buffers are counted by ``ingester.buffer.tree``, incoming batches by
``ingester.write.admission``, streams by ``ingester.write.streams`` and
``ingester.query.stream``, buffers waiting for a flush by ``ingester.flush.flusher``. Nothing
here frees memory, and nothing waits. Start reading at ``fair_shares``.
"""
