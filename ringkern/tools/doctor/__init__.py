"""Describes this machine and checks rings on it: ``python -m ringkern env`` and ``doctor``.

``machine`` reads the kernel's facts. ``probe`` reads those of torch and the extension, in another
process, so that both commands work if these do not load, or if loading them ends Python. Only the
smoke tests of this package need them.
"""
