"""Transformers: users' classes that change batches before they are logged.

    batch ─▶ ``chain`` ─▶ (the ``pool``: one class after the other) ─▶ `ingester.write.sender`

``transforms`` knows which classes a table has: by its settings, else by its manifest. A stream's
thread has the classes loaded (``loading``: allowed? imported, checked, versioned) and makes the
stream's ``chain``, an instance of each. The chain says with which schema the stream is opened, and
takes each batch through the instances. All that a user has written runs in the ``pool``, in threads
that may be given up: the import, the constructor, every method. ``failures`` tells the log.

What the log has is what came out of here: replay, adoption and flushes know no transformer. Deletes
are keys, and are not transformed; replication is refused. Nothing here runs on the event loop, but
for the question which classes a table has. What such a class is stands in
:mod:`ingester.transform`. Start reading at ``transforms``.
"""
