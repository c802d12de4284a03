"""Slot 4 of a policy, how kept bytes are held: one file per kind of page, its base class in
`storage.py`.
"""
