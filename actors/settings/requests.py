"""The limits of requests, each of them and all together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .part import AT_LEAST_ONE, BYTES, COUNT, AllowedTexts, Bounds, SettingsPart

LONGEST_CONTEXT = 8192  # tokens of a sequence unless ``max_model_len`` says more
TOKEN_CHARACTERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings(SettingsPart):
    """The limits beyond which requests are refused."""

    max_model_len: Annotated[
        int, "most tokens of prompt and answer together; 0: what the checkpoint says, at most 8192", COUNT
    ] = 0
    max_body: Annotated[
        int,
        "maximum size of a request's body in bytes (or 32MiB); 0: 4 MiB and 6 bytes for each character that may fit",
        BYTES,
        COUNT,
    ] = 0
    max_characters: Annotated[int, "most characters of a text to tokenize; each takes about 150 bytes", AT_LEAST_ONE] = (
        4_000_000
    )
    max_waiting: Annotated[int, "most requests in the server, over all gateways; more are refused", AT_LEAST_ONE] = 4096
    max_waiting_tokens: Annotated[int, "most tokens still to compute; more requests are refused; 0: no limit", COUNT] = 0
    request_timeout: Annotated[
        float,
        "seconds from arrival after which an unfinished request fails; 0: never",
        Bounds("seconds, or 0 for no limit", 0),
    ] = 0.0
    unknown_fields: Annotated[
        str, "warn (list unknown request fields in the header x-ignored-fields) or reject", AllowedTexts("warn", "reject")
    ] = "warn"
    reasoning_content: Annotated[
        bool, "answers of chats have the thinking under two names, reasoning and reasoning_content; no: under the first"
    ] = False

    @property
    def largest_body(self) -> int:
        """Return the bytes that a request's body may have.

        Without ``max_body`` they follow from the context. A token has at most ``TOKEN_CHARACTERS`` characters, apart from
        odd texts, and JSON writes a character in up to 6 bytes. The rest is space for lists of prompts and fields of
        messages.
        """
        context = TOKEN_CHARACTERS * (self.max_model_len or LONGEST_CONTEXT)
        return self.max_body or (4 << 20) + 6 * min(self.max_characters, context)
