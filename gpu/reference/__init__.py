"""The reference back end in plain torch, by which the others are measured."""
