"""CUDA back end. Its host code also runs without a card, over twins of the driver's interfaces; its kernels need Triton."""
