"""``POST /v1/responses``, stateless: a translation onto one chat, and of its answer into items and typed events."""
