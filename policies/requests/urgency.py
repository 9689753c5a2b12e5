"""Priority of requests as one number: the service class first, then the priority within the class, lower before higher.

There are three classes: urgent, normal and batch. Clients ask for them by a service tier. Lines of batches
(offline requests) come behind the class batch: no client waits for them, so they run on spare capacity and never rise.
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
URGENT = -1  # place of the highest class
NORMAL = 0
BATCH = 1
OFFLINE = 2  # place of lines of batches
CLASSES = {URGENT: "urgent", NORMAL: "normal", BATCH: "batch", OFFLINE: "batch"}
NAMED_CLASSES = ("urgent", "normal", "batch")
_CLASS = 1 << 40  # more than any difference of two priorities
FIRST_OFFLINE = OFFLINE * _CLASS - _CLASS // 2  # the most urgent offline value


def urgency(tier: str, priority: int) -> int:
    """Return the number that orders queues (``Submission.priority``). ``priority`` is a signed 32-bit number."""
    return TIERS[tier][1] * _CLASS + priority


def class_of(tier: str) -> str:
    """Return the name of the service class of a tier that a client may ask for."""
    return CLASSES[TIERS[tier][1]]


def offline_urgency(priority: int = 0) -> int:
    """Return the same number for an offline request, whatever its tier."""
    return OFFLINE * _CLASS + (priority + _CLASS // 2) % _CLASS - _CLASS // 2


def service_class(urgency: int) -> int:
    """Return the place of the class: ``URGENT``, ``NORMAL``, ``BATCH`` or ``OFFLINE``."""
    return max(URGENT, (urgency + _CLASS // 2) // _CLASS)


def risen_by(urgency: int, classes: int = 1) -> int:
    """Return the number of the same request in a class that is higher by ``classes``."""
    return urgency - classes * _CLASS


def rises(asked: int, urgency: int) -> int:
    """Return by how many classes ``urgency`` lies above ``asked``, the number of the same request as it came."""
    return (asked - urgency) // _CLASS


def shared_class(urgency: int) -> int:
    """Return the class that counts between accounts, which share fairly within one.

    It is 0, 1 for requests that go after all others, or ``OFFLINE``. The class urgent goes first only among
    the requests of its own account: any client may ask for it, and an operator gives accounts more by weights.
    """
    return max(0, (urgency + _CLASS // 2) // _CLASS)
