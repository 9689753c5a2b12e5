"""The HTTP application: its routes, and the reference (OpenAPI) made from them."""
