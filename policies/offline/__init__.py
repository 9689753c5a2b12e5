"""Offline batches: in which order requests run that nobody waits for."""
