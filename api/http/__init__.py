"""What every endpoint shares: keys, limits, headers, CORS, server-sent events, metrics, the admin endpoints."""
