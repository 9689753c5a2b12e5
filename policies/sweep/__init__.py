"""The sweep state machine, a worker's scheduler.

It decides which rows run next, which sequences wait, which one is preempted, and which of them own memory.
"""
