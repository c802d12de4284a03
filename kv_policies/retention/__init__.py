"""Slot 1 of a policy, what stays in the cache: one file per method, its base class in
`retention.py`.
"""
