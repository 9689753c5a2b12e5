"""The demo: the parts that ``blockwright demo`` shows, and the tasks of its checkpoint."""
