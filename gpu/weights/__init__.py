"""Checkpoints on disk: files, tensors, and the identity of what they hold."""
