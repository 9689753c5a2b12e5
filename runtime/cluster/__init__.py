"""Several processes: the head's view of its nodes, launchers, how a node joins."""
