"""The mark of a claim on the tests that show it; ``tests/docs/claims_page.py`` makes docs/claims/ from these marks."""

from __future__ import annotations

import pytest


def claim(sentence: str, *, of: str, headline: bool = False) -> pytest.MarkDecorator:
    """Mark a test as showing ``sentence``, which docs/claims/ lists on the page of the capability ``of``.

    The index shows a headline first. Several tests may show one sentence, and one test several. Write the sentence and the
    capability as literals, because the collector reads them from the source.
    """
    return pytest.mark.claim(sentence, of=of, headline=headline)
