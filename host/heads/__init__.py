"""What is known of a model's heads: head maps and head tables, measured and read."""
