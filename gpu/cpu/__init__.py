"""The back ends of a CPU: native kernels, and the torch reference that they are compared with."""
