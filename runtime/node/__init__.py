"""One node (process) of a cluster: its actors, calls and streams between nodes, monitors, links, registry, peers."""
