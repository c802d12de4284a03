"""Cached tokens: the banks of a stream, the pages that hold their rows, and RoPE moves of stored
keys.
"""
