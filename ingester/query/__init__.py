"""Answers: a snapshot of one table, streamed part by part.

ticket.py     what was asked            filters.py    its filter, checked
snapshot.py   what the answer holds     stream.py     one part after another, pulled by the client
files.py      Parquet by row group      spill.py      buffers that were let go under a reader
wanted.py     the rest of such a buffer, from its files
align.py      older rows in the table's columns
turns.py      how many answers are worked on at a time
"""
