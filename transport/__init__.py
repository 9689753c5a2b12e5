"""How messages and tensors move between processes. Knows nothing of actors or models."""
