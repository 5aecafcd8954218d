"""Which rows match a filter, and which files and row groups cannot have one.

``parse`` checks a filter against a schema; ``predicate`` answers for rows, and for bounds. A file
is left out only where no row of it can match. Start reading at ``predicate``.
"""
