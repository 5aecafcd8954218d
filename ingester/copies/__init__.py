"""Copies of whole tables: rows go straight into files, and become the table in one commit.

    streams of batches ─▶ ``table_copy`` ─▶ ``copy_files``: held by partition, sorted, encoded by a
        few threads, put into the folder of a version that nobody sees

    finish ─▶ ``copies`` ─▶ all rows in files, no key twice ─▶ ``takeover``: the version gets its
        first commit (columns, files, the source's state) and takes the table over

A copy is neither in the log nor in a buffer; it is invisible before its finish and ends with the
process. ``ingester.tables.new_version`` and ``persist.switching`` commit the version. Start reading
at ``copies``.
"""
