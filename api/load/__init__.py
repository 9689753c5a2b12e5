"""``blockwright bench``: loads of the usual forms, sent over HTTP only, and figures of their outcomes."""
