"""What an earlier version has written, and its client, go on working.

``old_data.tar.xz`` is a data directory and a store that the version before the rooms wrote and left
behind killed; ``answers.json`` is what that same version answers when it is started on it; and
``old_client.zip`` is its client. All three were made by ``make``.
"""
