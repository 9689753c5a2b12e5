"""Transport errors, below the errors of actors.

    TransportError
      AddressError     the caller named a node or endpoint that cannot be
      KeysError        keys that cannot be used, or an address that needs keys and has none
      HandshakeRefused          the other end does not want this connection, and says why
        ReleaseRefused   its release is too far from this one
      PeerGone         the peer was never connected, or its connection is lost for good
        KeyRefused     it is there, and does not take this node's key
      QueueFull        the peer reads too slowly: its bounded out-queue holds no more
      MessageTooLarge  the caller sends more than the receiver would take

Owns the error types only; the runtime above turns them into ``RuntimeFault`` of its own.
"""

from __future__ import annotations


class TransportError(Exception):
    """Base of all errors of this package."""


class AddressError(TransportError, ValueError):
    """A node name, endpoint or directory that cannot be used."""


class KeysError(TransportError):
    """Keys that are missing, unreadable or do not fit."""


class HandshakeRefused(TransportError):
    """A connection that the other end refused; the text is its reason."""


class ExpectedRefusal(HandshakeRefused):
    """A refusal that the asking node expects, so that there is nothing to warn of.

    A head that looks for a later head has reached itself, or a member asks whether another one is in reach.
    """


class ReleaseRefused(HandshakeRefused):
    """A node whose release is too far from this one. name: of the node; release: what it said that it is, or empty."""

    def __init__(self, text: str, *, name: str = "", release: str = "") -> None:
        super().__init__(text)
        self.name, self.release = name, release


class PeerGone(TransportError):
    """A peer that is not connected, or is no longer connected.

    For a transfer, the error holds the bytes and chunks that had been acknowledged.
    """

    def __init__(self, text: str, *, acknowledged: int = 0, chunks: int = 0) -> None:
        super().__init__(text)
        self.acknowledged, self.chunks = acknowledged, chunks


class KeyRefused(PeerGone):
    """A peer that does not take this node's key: it never did, or the life with that key is over for it."""


class QueueFull(TransportError):
    """A full out-queue to the peer."""


class MessageTooLarge(TransportError):
    """A frame or message over the limit of ``wire``; cut it into pieces."""
