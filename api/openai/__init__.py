"""The OpenAI-compatible endpoints: fields, request bodies, generation, forms of answers."""
