"""What tests, benches and pictures share: the pack beside a host, tiny models, a browser, broken
files.
"""
