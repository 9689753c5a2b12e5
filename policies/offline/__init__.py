"""Offline batches: the order and the placement of requests that no client waits for."""
