"""Simulator: whole clusters under virtual time, with the policies and the worker's state machine of the live system."""
