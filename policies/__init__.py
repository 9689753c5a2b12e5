"""Policies: every decision, and the data that decisions need.

Pure: standard library only, no clock, sockets, tensors or logging.
"""

from .compiled import use_compiled

COMPILED = use_compiled(__path__[0])  # True: the hot folders run in the form that mypyc compiled
