"""Real timestamps of every verb of a ring: recorded, kept in files and drawn.

:mod:`~ringkern.trace.record` makes a :class:`~ringkern.trace.events.Trace` of an all-reduce;
:mod:`~ringkern.trace.chrome` turns it into Perfetto's format.
"""
