"""Sampling, from logits to tokens: rules, penalties, truncation, noise."""
