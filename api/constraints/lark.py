"""The check of a Lark grammar: what the library reads beyond Lark's own language is held as elsewhere, or refused by name.

The library's dialect has schemas inside (``%json``), tokens by name and number, and attributes of rules, of which some would
change how tokens are drawn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ..checks import shown
from ..errors import bad_request

# A text or an expression that does not end is taken too: the library refuses it, and the search stays linear.
_PART = re.compile(
    r'"(?:\\.|[^"\\\n])*"?|(?://|\#)[^\n]*|/(?:\\.|[^/\\])*/?'  # texts, comments, expressions
    r"|(?P<json>%json\b\s*)|(?P<token><[^\s<>]*>)|\b(?P<attribute>temperature|max_tokens)\s*=",
    re.DOTALL,
)
SCHEMA = "%json"
MOST_SCHEMAS = 100


def checked_grammar(text: str, name: str, schema: Callable[[object, str], str]) -> str:
    """Return the grammar as the library is given it; raise a 400.

    ``schema`` checks a schema inside, and returns its text.
    """
    if "::=" in text:
        raise bad_request(f"{name} is in BNF (it has ::=); write it as a Lark grammar, whose rules have a colon", name)
    if text.lstrip().startswith(("{", "[")):
        raise bad_request(f"{name} is JSON; write a Lark grammar, or give a schema as json", name)
    written: list[str] = []
    at = schemas = 0
    while found := _PART.search(text, at):
        written.append(text[at : found.end()])
        at = found.end()
        if found["token"] is not None:
            why = f"has the token {shown(found['token'])}, and a grammar is of texts; write its text in quotes"
            raise bad_request(f"{name} {why}", name)
        if found["attribute"] is not None:
            why = f"has {found['attribute']} of a rule, which cannot be applied; give it as a field of the request"
            raise bad_request(f"{name} {why}", name)
        if found["json"] is not None:
            schemas += 1
            if schemas > MOST_SCHEMAS:
                raise bad_request(f"{name} has more than {MOST_SCHEMAS} schemas; give fewer", name)
            try:
                value, at = json.JSONDecoder().raw_decode(text, at)
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, dict):
                raise bad_request(f"{name} has {SCHEMA} without a schema behind it; give an object", name)
            written.append(schema(value, f"{name}{SCHEMA}"))
    if text.count(SCHEMA) != schemas:
        raise bad_request(f"{name} has {SCHEMA} in a text, an expression or a comment; write its % as \\x25", name)
    return "".join(written) + text[at:]
