"""Batches: files and jobs that are answered when there is capacity, and their lines."""
