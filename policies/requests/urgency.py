"""Priority: how early a request runs, its service tier first, then its priority within the tier, lower before higher.

Offline requests are a class of their own below all tiers: nobody waits for one of them, and no client asks for it by a tier.
"""

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
OFFLINE = 2  # place of the class below all tiers
FIRST_OFFLINE = OFFLINE * _CLASS - _CLASS // 2  # the most urgent number that is offline


def urgency(tier: str, priority: int) -> int:
    """The one number that queues are ordered by (``Submission.priority``). ``priority`` is of 32 bits, signed."""
    return TIERS[tier][1] * _CLASS + priority


def offline_urgency(priority: int = 0) -> int:
    """The same of an offline request, whatever its tier."""
    return OFFLINE * _CLASS + (priority + _CLASS // 2) % _CLASS - _CLASS // 2


def shared_class(urgency: int) -> int:
    """The class that counts between accounts, which share fairly within one: 0, 1 for what goes after everybody else's, or
    ``OFFLINE``.

    A tier above the default goes first among the requests of its own account alone: anybody may ask for it, and an operator
    who means some accounts to get more says so by weights.
    """
    return max(0, (urgency + _CLASS // 2) // _CLASS)
