"""How much memory there is, who holds it, and how it goes back.

    ``machine``     what the process may use ─▶ ``ledger``: what it holds, by kind, and watermarks
    ``allocator``   who holds rows for Arrow ─▶ ``heap_trim``: the C library's free memory goes back

    ``guard``       what is resident, in place of what is counted, where the two differ by much

It never refuses anything: that is admission's. Start reading at ``ledger``.
"""
