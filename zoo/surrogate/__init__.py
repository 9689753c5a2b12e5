"""Surrogates of blocks: making, measuring and keeping them."""
