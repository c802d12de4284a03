"""Head maps and head tables of a model: measured, written and read."""
