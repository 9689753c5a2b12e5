"""The native kernels as C sources: ``setup.py`` compiles them with gcc, and ``gpu/cpu/native/library.py`` loads the result.

Without gcc, ``gpu/select.py`` chooses the torch reference.
"""
