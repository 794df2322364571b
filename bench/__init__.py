"""Measurements that are not part of the package: see README.md."""
