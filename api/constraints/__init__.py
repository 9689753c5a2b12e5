"""Constraints on answers: schemas, expressions and grammars from requests, and the check that they can be held exactly."""
