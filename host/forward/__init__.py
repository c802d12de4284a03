"""One model call: the attention patch, conditionings and prompts of a chunk, roles and devices."""
