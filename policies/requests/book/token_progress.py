"""The progress of a request: its tokens, without gap or repetition, and how many of them have KV in its attempt."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...model.chain import VIRTUAL_TOKEN
from ...plan.sweep_plan import TokenLogprob
from ...sweep.events import PromptScored, TokensEmitted


@dataclass(slots=True, eq=False)
class TokenProgress:
    """The tokens of a request, and what the current attempt has computed of them. Knows no route and no time."""

    prompt: list[int]
    limit: int  # tokens of the answer at most
    scored: bool = False  # log-probabilities of the prompt are wanted
    virtual: int = 0  # tokens before the prompt, filled by its deltas; only workers count them
    begins: int = field(init=False)  # the position of the first token of the answer
    tokens: list[int] = field(default_factory=list)  # virtual ones, prompt and all emitted tokens
    scores: list[TokenLogprob] = field(default_factory=list)  # log-probabilities of the prompt received so far
    planned: bool = False  # the home has reported a first plan of the current attempt
    computed: int = 0  # tokens with KV in the current attempt
    cached: int = 0  # tokens found in the cache in the first attempt
    requeued: bool = False  # its home has preempted it and not restarted it: its KV is gone

    def __post_init__(self) -> None:
        self.begin_anew(self.virtual)

    @property
    def total(self) -> int:
        """The most tokens it may reach: virtual tokens, prompt and answer together."""
        return self.begins + self.limit

    @property
    def emitted(self) -> int:
        return len(self.tokens) - self.begins

    @property
    def waits(self) -> bool:
        """True while no worker has begun its attempt, or its worker has preempted it and not restarted it.

        A paused request, whose pages are moving, has a new attempt, and so waits. Any other request runs.
        """
        return self.requeued or not self.planned

    @property
    def decodes(self) -> bool:
        """True if all of its tokens but the newest have KV in the current attempt."""
        return self.planned and not self.requeued and self.computed >= len(self.tokens) - 1

    @property
    def reached(self) -> int:
        """Tokens that the current attempt has reached; 0 if it has no KV, not yet or because it was preempted."""
        return 0 if self.requeued else len(self.tokens) if self.decodes else self.computed

    @property
    def unscored(self) -> int:
        """Prompt tokens whose log-probabilities are wanted and have not arrived."""
        return len(self.prompt) - 1 - len(self.scores) if self.scored else 0

    def seen(self, tokens: int) -> int:
        """Return the number of non-virtual tokens among the first ``tokens``."""
        return max(0, tokens - self.virtual)

    def full_pages(self, page_size: int) -> int:
        """Return the number of its full pages that have KV."""
        return min(self.reached, len(self.tokens) - 1) // page_size

    def begin_attempt(self) -> None:
        """Begin without KV: the attempt is new, and no worker has reported it."""
        self.planned = False
        self.requeued = False
        self.computed = 0

    def begin_anew(self, virtual: int) -> None:
        """Forget the answer: it begins again with its prompt, behind ``virtual`` tokens."""
        self.virtual = virtual
        self.tokens = [VIRTUAL_TOKEN] * virtual + self.prompt
        self.begins = len(self.tokens)
        self.scores = []
        self.begin_attempt()

    def add(self, news: TokensEmitted) -> TokensEmitted | None:
        """Add the new tokens of ``news``, and return them; return None if nothing is new.

        Tokens that the request already has, repeated by a report, are dropped. ``news`` must leave no gap.
        """
        tokens = self.tokens
        skip = len(tokens) - news.position
        if skip:
            if skip > len(news.tokens) or (skip == len(news.tokens) and not news.finish):
                return None
            news = replace(news, position=len(tokens), tokens=news.tokens[skip:], logprobs=news.logprobs[skip:])
        tokens.extend(news.tokens)
        self.computed = max(len(tokens) - 1, 0)  # the newest token has no KV yet
        return news

    def score(self, news: PromptScored) -> PromptScored | None:
        """Add new log-probabilities of the prompt; return all of them once they are complete, else None.

        Entries of virtual tokens, and of the first token, are dropped.
        """
        skip = len(self.scores) - (news.position - 1 - self.virtual)
        new = news.entries[skip:] if skip >= 0 else []
        self.scores += new
        return replace(news, position=1, entries=self.scores) if new and not self.unscored else None
