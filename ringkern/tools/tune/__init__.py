"""``python -m ringkern tune``: measures every algorithm and protocol, and fits their costs."""
