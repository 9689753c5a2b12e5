"""Prediction: what a request would meet on each worker, and which of them it goes to."""
