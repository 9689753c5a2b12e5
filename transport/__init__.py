"""Transport of messages and tensors between processes: ZeroMQ, shared memory, loopback.

The package knows no actors and no models.
"""
