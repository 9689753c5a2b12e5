"""The processes that serve HTTP: start-up, console output, further gateways."""
