"""One process of a cluster: its actors, the calls and streams that cross to other nodes, monitors and links."""
