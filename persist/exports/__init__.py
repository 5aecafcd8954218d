"""Lists of a table's files for readers that do not know the manifest.

``spark_metadata`` is the list of Spark's own file sink. An export follows the manifest and never
leads it: what it lists is committed.
"""
