"""Decisions about requests: admission, rate limits, dispatch, urgency, how long a refused client waits."""
