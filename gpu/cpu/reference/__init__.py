"""Reference back end in plain torch, the standard for the others."""
