"""Decides which rows match a filter, and which files and row groups cannot contain a match.

    [column, operator, value] ─▶ `parse`: checked against a schema ─▶ `predicate`
                                     rows ─▶ a mask        bounds ─▶ may any of these rows match?

`literals` turns a number of a filter into the column's type without rounding, so that rows and
bounds are compared with the same value. `values` looks up alternatives that name values, of one
column or of several, instead of comparing them one by one.

`files` decides by the manifest which of a table's files may have matching rows.

A file is skipped only if none of its rows can match; the rest is tested row by row. This package
reads no file: bounds come from the manifest, a partition's values or a footer. Start reading at
`predicate`.
"""
