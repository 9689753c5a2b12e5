"""For programs: the client, the embedded cluster, ``generate``, the pytest plugin."""
