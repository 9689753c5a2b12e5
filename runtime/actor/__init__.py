"""Actors and references to them: endpoints, streams, deadlines of calls."""
