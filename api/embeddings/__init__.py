"""Vectors of texts, and scores of pairs of texts: by an embedder's vectors, or by a reranker's verdict."""
