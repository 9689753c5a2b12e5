"""Overload: replicas give up parameters (drop them) when KV memory runs out in a burst, and restore them after it.

Parameters that exist twice become KV memory in a burst, and come back after it.
"""
