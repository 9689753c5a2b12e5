"""The Python API: client, embedded cluster, offline ``generate``, pytest plugin."""
