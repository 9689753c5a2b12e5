"""The demo: what ``blockwright demo`` shows, and the tasks that its checkpoint can do."""
