"""Every decision, and the data that decisions need. Pure: standard library only, no clock, sockets, tensors or logging."""

from pathlib import Path

from blockwright.policies.compiled import use_compiled

COMPILED = use_compiled(Path(__file__).parent)  # whether the hot rooms run in the form that mypyc compiled
