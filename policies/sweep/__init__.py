"""The sweep state machine: which rows run next, who waits, who is preempted, who holds memory."""
