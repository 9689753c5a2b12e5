"""Kernels of the CUDA back end in Triton: compiled on a card, interpreted in tests. Imported only where Triton is installed.

Two rules keep one order of sums. What decides machine code is a ``constexpr``, and nothing else is specialised: a length
that happens to be 1 or divisible by 16 compiles nothing new. And a row's arithmetic never depends on the other rows of its
tile. Addresses come as int64, since the start of a reserved range may be unmapped, which a tensor argument may not be.
"""
