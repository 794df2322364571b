"""The choice of algorithm, protocol and ring order, with the data that it uses.

:mod:`~ringkern.choose.tables` holds the rows from which ``"auto"`` chooses,
:mod:`~ringkern.choose.cost` the predicted times, :mod:`~ringkern.choose.cache` the files that
``python -m ringkern tune`` writes, :mod:`~ringkern.choose.ring_order` the order of GPUs on a
machine's rings (:mod:`~ringkern.choose.topology`, :mod:`~ringkern.choose.rings`), and
:mod:`~ringkern.choose.explain` the reasons.
"""
