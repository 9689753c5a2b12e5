"""Equivalent blocks, and stitches between blocks of different widths: measuring and making them, and keeping the results."""
