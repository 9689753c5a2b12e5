"""The processes that serve HTTP: start-up, console, further gateways."""
