"""Blockwright serves many language models from shared blocks. Every model is a chain of blocks."""
