"""How early a request runs: its service tier first, then its priority within the tier, lower before higher."""

from __future__ import annotations

# tier that a client may ask for -> (tier that it gets, place of its class)
TIERS = {
    "auto": ("default", 0),
    "default": ("default", 0),
    "flex": ("flex", 1),
    "scale": ("scale", 0),
    "priority": ("priority", -1),
    "fast": ("fast", -1),
}
_CLASS = 1 << 40  # more than any two priorities differ by


def urgency(tier: str, priority: int) -> int:
    """The one number that queues are ordered by (``Submission.priority``). ``priority`` is of 32 bits, signed."""
    return TIERS[tier][1] * _CLASS + priority


def shared_class(urgency: int) -> int:
    """The class that counts between accounts, which share fairly within one: 0, or 1 for what goes after everybody else's.

    A tier above the default goes first among the requests of its own account alone: anybody may ask for it, and an operator
    who means some accounts to get more says so by weights.
    """
    return max(0, (urgency + _CLASS // 2) // _CLASS)
