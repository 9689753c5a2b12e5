"""The parts that all endpoints share: keys, limits, headers, CORS, server-sent events, metrics, the admin endpoints."""
