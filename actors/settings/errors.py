"""Errors of settings, each one sentence for the person who started the cluster."""

from __future__ import annotations


class StartError(Exception):
    """A cluster cannot serve what it was started for. The text is one sentence for the person who started it."""


class SettingsError(ValueError):
    """An invalid setting. The message names the field, the value and the remedy."""
