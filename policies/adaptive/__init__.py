"""Decisions about chains that answer in place of others."""
