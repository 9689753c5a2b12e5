"""``blockwright bench``: loads of the usual shapes, sent over HTTP alone, and what became of them in figures."""
