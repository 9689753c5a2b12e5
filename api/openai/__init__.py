"""The OpenAI-compatible endpoints: fields, bodies, generation, shapes of answers."""
