"""Measurements of sweeps, loads and links on a device, as input for the cost model."""
