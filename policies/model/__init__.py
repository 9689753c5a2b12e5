"""What a model is: chains of components, their lineage, where they are cut and what a worker runs of them."""
