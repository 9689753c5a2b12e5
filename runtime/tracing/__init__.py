"""Message logs: written by every node, read as trees of calls."""
