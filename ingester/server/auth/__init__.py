"""Who may do what: tokens, rights, and the one place where both are checked.

    ``opening``          makes all of this by the settings, and reads tokens again
    a call ─▶ Flight's middleware, or HTTP's entrance ─▶ ``access``: its token becomes a caller
       ``tokens``        a token of ours: how it is made, hashed and found
       ``token_file``    the file that keeps them: read, watched, replaced whole
       ``jwt_tokens``    a provider's token, by the keys that it shows
       ``jwks``          loads those keys from a file or a URL, within one limit of time
    a caller ─▶ ``access``: the need of what is asked for, against the caller's grants
       ``needs``         one table of everything that can be asked for; the rest is refused
       ``rights``        rights, grants, callers
       ``views``         of what is told about all namespaces, what a caller may see
    refusals and administrative actions ─▶ ``audit``
    a browser's request ─▶ ``hosts``: whether it was meant for this daemon

Law of this room: nothing is open by being forgotten. What is not in the table of needs is refused,
and so is a call that comes without its caller. Without ``[auth]`` in the settings there is one
caller, who may do everything.

Nothing here knows of rows, tables or protocols. Start reading at ``access``.
"""
