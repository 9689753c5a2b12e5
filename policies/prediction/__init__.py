"""What is forecast of requests and workers. Pure: see the layer."""
