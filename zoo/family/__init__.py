"""Training of model families: checkpoints whose first layers, each time with a head, are models of their own."""
