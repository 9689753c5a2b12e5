"""Measures what a device does with a model: sweeps, loads and links, as the cost model wants them."""
