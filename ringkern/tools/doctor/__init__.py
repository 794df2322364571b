"""Describes this machine and checks rings on it: ``python -m ringkern env`` and ``doctor``.

``machine`` reads what the kernel says, ``probe`` what torch and the extension say, in a process of
its own, so that both commands work where these do not load, and where loading them ends Python.
Nothing of this package but the smoke tests needs them.
"""
