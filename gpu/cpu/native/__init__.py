"""Native CPU back end over the compiled kernels of ``gpu/cpu/kernels``."""
