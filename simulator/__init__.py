"""Whole clusters under virtual time: the policies and state machines of the live system, on a described cluster."""
