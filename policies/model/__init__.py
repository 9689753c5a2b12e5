"""Models as data: chains of components, their lineage, cuts into blocks, and the runs of a worker."""
