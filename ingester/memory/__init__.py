"""Memory: its size, its users, and its return to the system.

    ``machine``        what the process may use, and what it has in RAM
    ``ledger``         the bytes that the daemon holds, by kind, and the watermarks
    ``heap_settings``  environment variables of glibc and Arrow, set before either is loaded
    ``heap_trim``      returns free memory of the C library's heap to the system

This room refuses nothing: ``ingester.write.admission`` does. Start reading at ``ledger``.
"""
