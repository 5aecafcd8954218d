"""Copies of whole tables: rows that go straight into files, and become the table at once.

    streams of batches ─▶ ``table_copy`` ─▶ ``copy_files``: held by partition, sorted, encoded in
        the threads of ``encoders``, put into the folder of a version that does not count yet

    finish ─▶ ``copies`` ─▶ all rows in files, no key twice ─▶ ``takeover``: the version gets its
        first commit (columns, files, the source's state) and takes the table over

``plan`` says which table a copy makes: that of its columns and key, laid out as the table that is
there where that can be. Nothing of a copy is in the log or in a buffer, and nothing shows before
its finish; it ends with the process. How a version is committed is in
``ingester.tables.new_version`` and ``persist.switching``. Start reading at ``copies``.
"""
