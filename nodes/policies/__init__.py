"""The nodes of retentions and selections, one file a node. Each fills one slot of the policy that
comes in and hands it on.
"""
