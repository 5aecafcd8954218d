"""The Flight server: gRPC threads outside, one event loop inside, and one place where they meet.

server.py   the methods of Flight           requests.py  descriptors and bodies, checked
put.py      a stream of writes              answers.py   what is sent back for each
get.py      an answer as a Flight stream    actions.py   DoAction
portal.py   from a gRPC thread to the loop  refusals.py  errors as clients see them
"""
