"""Decisions about workers, blocks, links and processes: placement, scaling, model swapping, chunk order, restarts."""
