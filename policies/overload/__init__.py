"""Parameter dropping when KV memory runs out.

Parameters that exist twice become KV memory in a burst, and come back after it.
"""
