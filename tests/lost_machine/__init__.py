"""Machines are lost under load, and every row that was acknowledged at ``store`` is counted.

    make lost-machine
    python -m tests.lost_machine [--seed N] [--losses N] [--places file,s3]

Three daemons with one store have eight writers. A machine is lost at a random moment: its process
is killed and its data directory is gone, or the process is paused, replaced, and woken later. A
process with the same id and an empty data directory takes its place, after an adoption by a command
or by the other daemons, or without one. Some of the lost disks are found again and adopted. Reads
through a client of all daemons, the files and Spark must have every row that was acknowledged at
``store``, once, and refusals must say what to do:

    losses         plans the losses                      homes          where each daemon is
    fleet          starts, loses, pauses and wakes       places         local files, or a far S3
    clients        the writers                           spark_process  Spark's sink and last reads
    knocks         writes to woken processes             adoptions      of logs and of found disks
    tables         what is written, and where            advice         judges refusals
    checks         reads, compared with the notes        report         the results
    campaign       write, lose, check, repeat; read in every way at the end
    run            campaigns in several places, the histories judged

Rows, ledgers, histories and their checks are those of :mod:`tests.crash`.
"""
