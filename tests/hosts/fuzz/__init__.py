"""A random fuzz of all calls of the backend "ringkern" and of ringkern's own, on 1 to 3 hosts.

``make fuzz``, or ``python -m tests.hosts.fuzz``. ``calls`` draws a call and checks it, ``values``
computes results by NumPy, ``over_ring`` and ``in_pairs`` are the kinds of call, ``steps`` is what a
rank does, and ``__main__`` starts the ranks and tells what happened.
"""
