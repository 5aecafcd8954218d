"""What a namespace may take of a daemon: quotas where they are set, fair shares everywhere.

    ``fair_shares``    the rule by which whoever has more than an equal share is refused first
    ``token_bucket``   so much in a second, as a mean; what is larger than a second's worth is owed
    ``use``            what one namespace has now, beside its quotas
    ``namespaces``     all of them; whoever is about to take more asks there, and is refused there

A buffer's bytes are counted by ``ingester.buffer.tree``, batches on their way by
``ingester.write.admission``, streams by ``ingester.write.streams`` and
``ingester.query.answer_places``, what waits for a flush by ``ingester.flush.flusher``. Nothing here
frees anything, and nothing waits. Start reading at ``fair_shares``.
"""
