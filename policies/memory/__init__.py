"""One worker's memory: chunks, KV slots, pages with the prefix index, resident components."""
