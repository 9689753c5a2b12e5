"""Decisions about processes and links: the restart policy, the order in which a link sends."""
