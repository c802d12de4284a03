"""A small trained world that ships with the pack, and how it was trained."""
