"""Stitches: matrices that lead from the states of one model into another of a different width."""
