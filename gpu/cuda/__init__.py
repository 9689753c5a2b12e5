"""CUDA back end: everything but its kernels runs on a host without a card, over twins of the driver's interfaces."""
