"""Equivalent blocks: measuring them and keeping the results."""
