"""Memory when it runs out: parameters that exist twice become KV in a burst, and come back after it."""
