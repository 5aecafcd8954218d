"""How much memory there is, who holds it, and how it goes back.

``machine`` says what the process may use, ``ledger`` counts what it holds by kind and knows the
watermarks, ``allocator`` chooses who holds rows for Arrow, ``heap_trim`` gives the C library's free
memory back. It never refuses anything: that is admission's. Start reading at ``ledger``.
"""
