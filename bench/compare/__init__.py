"""Measures ringkern beside other libraries' all-reduce on one machine, in one run.

Every contender, ringkern too, is as many processes as there are ranks (:mod:`worker`), which sleep
until the coordinator gives them the turn.

The coordinator, in the order in which it is used: :mod:`install` gets the libraries from PyPI,
:mod:`catalogue` lists the contenders, :mod:`contender` starts and ends one, :mod:`field` all of
them, :mod:`contest` gives :mod:`turns <ringkern.tools.turns>`, :mod:`comparison`, :mod:`table` and
:mod:`plot` show them.

A rank (:mod:`alone`, :mod:`worker`, :mod:`memory`, :mod:`adapters`, :mod:`torch_adapters`) works in
a library's own environment, in which neither ringkern nor torch need be installed: of ringkern it
imports :mod:`ringkern.tools.turns` alone, which needs Python alone.
"""
