"""The show: three daemons as one, 80 % of the load that the machine takes, and a fault each minute.

``realm`` is the daemons, their disks and their store; ``load`` writes and reads, ``keyed`` does so
in a table with a primary key, by a ``ledger`` of each key; ``faults`` befall them, and ``upkeep``
has Spark compact; ``watch`` samples, ``campaign`` leads and judges, ``picture`` draws.
``make show`` takes an hour; the tests have a short form.
"""
