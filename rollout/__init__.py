"""How a take is made: chunk loop, session and stats. Needs kv_policies and torch, no host."""
