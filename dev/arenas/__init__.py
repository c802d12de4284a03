"""The arenas in which papers measure: what reproduces their rows with our policies.

cmbench    CMBench: contexts of about a minute, and what a continuation remembers of them
"""
