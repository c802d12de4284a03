"""Slot 3 of a policy, in which order forwards run: one file per method, its base class in
`schedule.py`.
"""
