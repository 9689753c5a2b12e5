"""Settings from files, flags and defaults, and as text."""
