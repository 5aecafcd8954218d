"""The write path as a chain of sinks: metrics, origins, log, buffer tree.

Every sink has one method, :meth:`DmlSink.submit`. Decorators hold the next sink and change what
goes in or comes out; the log is a decorator of the tree. Answers come on the event loop.
"""

from ingester.sinks.interface import Answer, DmlSink
from ingester.sinks.operation import Operation, Part, Transaction

__all__ = ["Answer", "DmlSink", "Operation", "Part", "Transaction"]
