"""Checkpoints on disk: files, tensors, and the identity of their content."""
