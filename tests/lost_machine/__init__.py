"""Machines are lost under load, and every row that was acknowledged at ``store`` is counted.

    make lost-machine
    python -m tests.lost_machine [--seed N] [--losses N] [--places file,s3]

Three daemons with one store have eight writers. A machine is lost at a random moment: its process
is killed and its data directory deleted, or the process is paused, replaced, and woken later. A
process with the same id and an empty data directory takes its place, after an adoption or without
one. Reads through a client of all daemons, the files and Spark must have every row that was
acknowledged at ``store``, once, and refusals must say what to do:

    losses         plans the losses                      homes          where each daemon is
    fleet          starts, loses, pauses and wakes       places         local files, or a far S3
    clients        the writers                           spark_process  Spark's sink and last reads
    advice         judges refusals
    campaign       write, lose, check, repeat; read in every way at the end
    run            campaigns in several places, the histories judged

Rows, ledgers, histories and their checks are those of :mod:`tests.crash`.
"""
