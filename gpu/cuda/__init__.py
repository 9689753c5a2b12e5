"""CUDA back end. Without its kernels, which need Triton, it runs on a host without a card, over twins of the driver's interfaces."""
