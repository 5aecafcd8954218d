"""Authentication and rights: tokens, grants, and the one place where both are checked.

    a call ─▶ Flight's middleware, or HTTP's entrance ─▶ ``access``: its token becomes a caller
       ``tokens``        tokens of ours: made, hashed and found, and their file
       ``jwt_tokens``    an OpenID Connect provider's tokens and published keys
    a caller ─▶ ``access``: the right that the request needs, against the caller's grants
       ``rights``        rights, grants, callers, and the table of what each request needs
    refusals and administrative actions ─▶ ``audit``

A request that is not in that table is refused, and so is a call without a caller
(``tests/server/auth/test_every_need.py``). Without ``[auth]`` in the settings there is one caller,
who may do everything.

Nothing here knows of rows, tables or protocols. Start reading at ``access``.
"""
