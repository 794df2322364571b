"""Measures ringkern beside other libraries' all-reduce on one machine, in one run.

Every contender, ringkern too, is as many processes as there are ranks (:mod:`worker`), which sleep
until the coordinator gives them the turn.

The coordinator, in the order in which it is used: :mod:`install` gets the peers from PyPI,
:mod:`catalogue` lists the contenders, :mod:`contender` starts and ends one, :mod:`field` all of
them, :mod:`contest` gives :mod:`turns <ringkern.turns>`, :mod:`comparison`, :mod:`table` and
:mod:`plot` show them.

What a rank runs (:mod:`alone`, :mod:`worker`, :mod:`memory`, :mod:`adapters`, and
:mod:`torch_adapters`) works in a peer's own environment, in which neither ringkern nor torch need
be installed: of the package above it imports :mod:`ringkern.turns` alone, which needs Python
alone.
"""
