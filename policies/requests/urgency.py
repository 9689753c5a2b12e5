"""Priority of requests as one number: the service tier first, then the priority within the tier, lower before higher.

Offline requests are a class below all tiers: no client waits for them, and no client asks for that class by a tier.
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
_CLASS = 1 << 40  # more than any difference of two priorities
OFFLINE = 2  # place of the class below all tiers
FIRST_OFFLINE = OFFLINE * _CLASS - _CLASS // 2  # the most urgent offline value


def urgency(tier: str, priority: int) -> int:
    """Return the number that orders queues (``Submission.priority``). ``priority`` is a signed 32-bit number."""
    return TIERS[tier][1] * _CLASS + priority


def offline_urgency(priority: int = 0) -> int:
    """Return the same number for an offline request, whatever its tier."""
    return OFFLINE * _CLASS + (priority + _CLASS // 2) % _CLASS - _CLASS // 2


def shared_class(urgency: int) -> int:
    """Return the class that counts between accounts, which share fairly within one.

    It is 0, 1 for requests that go after everybody else's, or ``OFFLINE``. A tier above the default goes first only among
    the requests of its own account: any client may ask for it, and an operator gives accounts more by weights.
    """
    return max(0, (urgency + _CLASS // 2) // _CLASS)
