"""Logs of messages: written by every node, read as trees of calls."""
