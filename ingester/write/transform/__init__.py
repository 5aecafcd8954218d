"""Transformers: users' classes that change batches before they are logged.

    batch ─▶ ``chain`` ─▶ (the ``pool``: one class after the other) ─▶ `ingester.write.sender`

``transforms`` knows which classes a table has: from the settings, else from its manifest. A
stream's thread loads the classes (``loading`` checks that they are allowed, imports and versions
them) and makes the stream's ``chain``, with an instance of each. The chain names the schema with
which the stream is opened and takes each batch through the instances. Users' code runs in the
``pool`` only, in threads that may be given up: the import, the constructor and every method.

The log holds what comes out of here: replay, adoption and flushes know no transformer. Deletes are
keys and are not transformed; replication into a table with transformers is refused. Only
``Transforms.names_of`` runs on the event loop. :mod:`ingester.transform` has the interface of the
classes. Start reading at ``transforms``.
"""
