"""The request book: the life of each request of one gateway, from its arrival to its end."""
