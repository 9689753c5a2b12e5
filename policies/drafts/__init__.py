"""Drafts: guesses of the next tokens of a sequence, which its own model verifies in one sweep (``sweep/drafting.py``).

A draft changes no token. The model draws the token of every drafted position as it would without drafts, with the noise
of that position, and a draft stands if it is that token (Daliri et al., "Coupling without Communication and
Drafter-Invariant Speculative Decoding", 2025).
"""
