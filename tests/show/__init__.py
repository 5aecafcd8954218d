"""The show: three daemons, 80 % of the machine's maximum load, and a fault each minute.

``realm`` is the daemons, their disks and their store; ``load`` writes and reads, ``keyed`` does
so in a table with a primary key, with a ``ledger`` of each key; ``faults`` are caused at them,
and ``upkeep`` has Spark compact; ``watch`` samples, ``campaign`` runs and judges, ``picture``
draws. ``make show`` takes an hour; the tests have a short form.
"""
