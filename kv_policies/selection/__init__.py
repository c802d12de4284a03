"""Slot 2 of a policy, what each query reads: one file per method, its base class in
`selection.py`.
"""
