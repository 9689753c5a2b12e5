"""Tensor code: checkpoints, memory, tables, kernels, sampling. No sockets, no asyncio."""
