"""Every decision, and the data that decisions need. Pure: standard library only, no clock, sockets, tensors or logging."""
