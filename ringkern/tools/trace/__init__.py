"""Real timestamps of every verb of a ring: recorded, kept in files and drawn.

:mod:`~ringkern.tools.trace.record` makes a :class:`~ringkern.tools.trace.events.Trace` of an
all-reduce; :mod:`~ringkern.tools.trace.chrome` turns it into Perfetto's format.
"""
