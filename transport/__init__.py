"""Transport of messages and tensors between processes: ZeroMQ, shared memory, loopback. Knows no actors and no models."""
