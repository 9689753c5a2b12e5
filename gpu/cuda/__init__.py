"""CUDA back end: on a card with its kernels, which need Triton, or on a host, over twins of the driver's interfaces."""
