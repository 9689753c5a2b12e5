"""The CUDA back end. Imported only by what opens it: it needs Triton, an extra (``pip install 'blockwright[gpu]'``)."""
