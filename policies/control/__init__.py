"""The control of a cluster: what belongs on which worker, what loads and unloads there, and which routes are in force."""
