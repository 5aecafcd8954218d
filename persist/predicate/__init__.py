"""Which rows match a filter, and which files and row groups cannot have one that does.

    [column, operator, value] ─▶ ``parse``: checked against a schema ─▶ ``predicate``
                                     rows ─▶ a mask         bounds ─▶ may any of these rows match?

Alternatives that name values are looked up, not compared one by one: those of one column in
``values``, those of several columns in ``points``.

A file is left out only where no row of it can match; what survives is looked at row by row. It
reads no file: bounds come from the manifest, from a partition's values or from a footer. Start
reading at ``predicate``.
"""
