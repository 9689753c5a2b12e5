"""The CUDA back end. Imported only by what opens it: it needs Triton, which is an extra (``pip install 'blockwright[gpu]'``)."""
