"""Everything that touches tensors: checkpoints, memory, tables, kernels, sampling. No sockets, no asyncio."""
