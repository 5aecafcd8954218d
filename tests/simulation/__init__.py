"""How many daemons one table takes: real commits on a store whose requests take simulated time.

``clock`` lets time pass and blocking code run in it, one thread at a time; ``store`` answers in its
time and counts; ``daemons`` commit by the code that daemons run; ``costs`` counts what else is
asked of the store; ``report`` is tables and curves. ``make simulation`` runs up to 1,000 daemons.

Law of this package: no constant stands for a piece of the code. Latencies and prices are the only
numbers that are assumed, and a test compares simulated time with real time.
"""
