"""The turn of a model: what it looks like, the reader of it, and the grammar of it."""
