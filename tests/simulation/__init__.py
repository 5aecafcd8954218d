"""How many daemons one table supports: real commits on a store with simulated latencies.

``clock`` advances simulated time and runs blocking code in it, one thread at a time; ``store``
simulates latencies and counts requests; ``daemons`` commit with the product's own code;
``costs`` counts other requests, ``store_log`` those of the log in the store; ``report`` makes
tables and curves. ``make simulation`` runs up to 1,000 daemons.

No constant replaces a piece of the code. Only latencies and prices are assumed, and a test
compares simulated time with real time.
"""
