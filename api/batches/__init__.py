"""Batches: files and jobs that are answered when there is room, and the lines that they are made of."""
