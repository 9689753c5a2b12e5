"""Text and tokens: tokenizers, detokenization, stop strings, chat templates."""
