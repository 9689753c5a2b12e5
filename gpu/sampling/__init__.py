"""From logits to tokens: rules, penalties, truncation, noise."""
