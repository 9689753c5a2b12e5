"""The expression of a Lark grammar, for places where a text has to be one: the arguments of a tool call are JSON.

The rules are written into each other, so a rule that refers to itself has no expression here, and is refused by name. The
language is the rules' own: every text that they derive, wherever tokens might end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..checks import shown
from ..errors import ApiError, bad_request
from .constraint import LONGEST_TEXT, literal
from .patterns import pattern_fault

MOST_RULES, DEEPEST = 500, 80  # rules of a grammar, rules and brackets in each other
LARGEST_COUNT = 1000  # of a repetition
_TOKEN = re.compile(
    r"""(?P<skip>[ \t\f]+|(?://|\#)[^\n]*|\\\n)|(?P<line>\r?\n)
    |(?P<text>"(?:\\.|[^"\\\n])*"i?)
    |(?P<expression>/(?!/)(?:\\.|[^/\\\n])*/[a-z]*)
    |(?P<name>_?[A-Za-z][A-Za-z0-9_]*)
    |(?P<number>\d+)|(?P<arrow>->)|(?P<range>\.\.)|(?P<directive>%[a-z]+)
    |(?P<sign>[:|()\[\]?*+~{},.!])""",
    re.VERBOSE,
)
_INT = "[0-9]+"
_DECIMAL = r"(?:[0-9]+\.[0-9]*|\.[0-9]+)"
_FLOAT = rf"(?:[0-9]+[eE][+-]?[0-9]+|{_DECIMAL}(?:[eE][+-]?[0-9]+)?)"
COMMON = {  # the terminals of Lark's own library
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": _INT,
    "SIGNED_INT": f"[+-]?{_INT}",
    "DECIMAL": _DECIMAL,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": f"(?:{_FLOAT}|{_INT})",
    "SIGNED_NUMBER": f"[+-]?(?:{_FLOAT}|{_INT})",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z_0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "SQL_COMMENT": r"--[^\n]*",
}
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "\\": "\\", '"': '"', "'": "'", "/": "/"}
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|.)", re.DOTALL)


def lark_pattern(text: str, name: str) -> str:
    """Return an expression that matches the texts of a grammar; raise a 400 that names what has none."""
    grammar = _Grammar(name)
    grammar.read(_tokens(text, grammar))
    return grammar.expression()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


def _tokens(text: str, grammar: _Grammar) -> list[_Token]:
    found = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise grammar.refusal(f"has {shown(text[at : at + 20])}, which cannot be read; write plain Lark rules")
        at = match.end()
        kind = str(match.lastgroup)
        if kind != "skip":
            found.append(_Token(kind, match[0]))
    return [*found, _Token("line", "\n")]


@dataclass(slots=True)
class _Grammar:
    """The rules of one grammar by name: their tokens, and their expressions once they are made."""

    name: str
    rules: dict[str, list[_Token]] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    ignored: list[list[_Token]] = field(default_factory=list)
    depth: int = 0
    between: str = ""  # the expression of what is ignored between terminals

    def refusal(self, why: str) -> ApiError:
        """Return the 400 for a part of the grammar."""
        return bad_request(f"{self.name} {why}", self.name, "unsupported_constraint")

    def read(self, tokens: Sequence[_Token]) -> None:
        """Read all statements."""
        for line in _statements(tokens):
            while len(line) > 1 and line[0].text in ("!", "?"):
                line = line[1:]  # the shape of the tree
            head, rest = line[0], line[1:]
            if head.kind == "directive":
                self._direct(head.text, rest)
            elif head.kind == "name" and rest:
                self._define(head.text, rest)
            else:
                raise self.refusal(f"has a line that begins with {shown(head.text)}; begin it with a rule and a colon")
        if "start" not in self.rules:
            raise self.refusal("has no rule start; name the whole text so")

    def _define(self, name: str, rest: Sequence[_Token]) -> None:
        if rest[0].text != ":":
            why = "a priority" if rest[0].text == "." else "parameters"
            raise self.refusal(f"has {why} of the rule {shown(name)}, or no colon behind it; write NAME: and the texts")
        if name in self.rules or name in self.made:
            raise self.refusal(f"has the rule {shown(name)} twice; give it once")
        if len(self.rules) >= MOST_RULES:
            raise self.refusal(f"has more than {MOST_RULES} rules; give fewer")
        self.rules[name] = list(rest[1:])

    def _direct(self, directive: str, rest: Sequence[_Token]) -> None:
        if directive == "%ignore" and rest:
            self.ignored.append(list(rest))
            return
        words = [token.text for token in rest]
        if directive != "%import" or words[:1] != ["common"] or words[1:2] not in (["."], ["("]):
            raise self.refusal(f"has {directive} {shown(' '.join(words))}; only %ignore and %import common.NAME can be used")
        listed = words[2:3] if words[1] == "." else words[2:-1:2]
        alias = words[4] if words[3:4] == ["->"] and len(words) == 5 else ""
        for one in listed:
            if one not in COMMON:
                raise self.refusal(f"imports common.{shown(one)}; there are {', '.join(COMMON)}")
            self.made[alias or one] = f"(?:{COMMON[one]})"

    def expression(self) -> str:
        """Return the expression of the rule start."""
        skipped = [_Parser(self, one, (), terminal=True).whole() for one in self.ignored]
        self.between = f"(?:{'|'.join(skipped)})*" if skipped else ""
        return self.between + self.of("start", ())

    def of(self, name: str, path: tuple[str, ...]) -> str:
        """Return the expression of a rule. ``path``: the rules that it stands in."""
        if name in self.made:
            return self.made[name]
        if name not in self.rules:
            raise self.refusal(f"uses {shown(name)}, which is no rule; define it")
        if name in path:
            why = "and the argument of a call here must be an expression, which has no such rules; use * and + instead"
            raise self.refusal(f"has the rule {shown(name)} that refers to itself, {why}")
        self.made[name] = f"(?:{_Parser(self, self.rules[name], (*path, name), terminal=name.isupper()).whole()})"
        return self.made[name]

    def checked(self, made: str) -> str:
        """Return an expression; raise a 400 for a long one."""
        if len(made) > LONGEST_TEXT:
            raise self.refusal(f"makes an expression of more than {LONGEST_TEXT:,} characters; write it shorter")
        return made

    def deeper(self, levels: int) -> None:
        """Count the levels of the reading; raise a 400 for too many."""
        self.depth += levels
        if self.depth > DEEPEST:
            raise self.refusal(f"has more than {DEEPEST} rules and brackets in each other; write it flatter")


def _statements(tokens: Sequence[_Token]) -> Iterator[list[_Token]]:
    """Yield the tokens of each statement; a line that begins with ``|``, or stands in brackets, continues the one before."""
    current: list[_Token] = []
    depth = 0
    for i, token in enumerate(tokens):
        depth += token.text in ("(", "[") and token.kind == "sign"
        depth -= token.text in (")", "]") and token.kind == "sign"
        if token.kind != "line":
            current.append(token)
        elif current and depth <= 0:
            later = next((one for one in tokens[i:] if one.kind != "line"), None)
            if later is None or later.text != "|":
                yield current
                current = []
    if current:
        yield current


class _Parser:
    """The reading of one rule. ``terminal``: nothing is ignored inside."""

    def __init__(self, grammar: _Grammar, tokens: Sequence[_Token], path: tuple[str, ...], *, terminal: bool) -> None:
        self._grammar, self._tokens = grammar, tokens
        self._path = path
        self._terminal = terminal
        self._at = 0

    def whole(self) -> str:
        made = self._either()
        if self._at < len(self._tokens):
            raise self._unread()
        return made

    def _unread(self) -> ApiError:
        return self._grammar.refusal(f"has {shown(self._next.text)} in a rule, which cannot be read there")

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else _Token("end", "")

    def _take(self, text: str) -> bool:
        found = self._next.text == text and self._next.kind == "sign"
        self._at += found
        return found

    def _either(self) -> str:
        self._grammar.deeper(1)
        found = [self._sequence()]
        while self._take("|"):
            found.append(self._sequence())
        self._grammar.deeper(-1)
        return self._grammar.checked("|".join(found))

    def _sequence(self) -> str:
        made = ""
        while self._next.kind in ("text", "expression", "name") or self._next.text in ("(", "["):
            made = self._grammar.checked(made + self._repeated(self._one()))
        if self._next.kind == "arrow":  # the name of a branch of the tree
            self._at += 2
        return made

    def _one(self) -> str:
        token = self._next
        self._at += 1
        if token.text in ("(", "["):
            inner = self._either()
            if not self._take(")" if token.text == "(" else "]"):
                raise self._unread()
            return f"(?:{inner})" if token.text == "(" else f"(?:{inner})?"
        if token.kind == "name":
            made = self._grammar.of(token.text, self._path)
            return made + self._skip() if token.text.isupper() else made
        if token.kind == "expression":
            return self._expression(token.text) + self._skip()
        if self._next.kind == "range":
            last = self._tokens[self._at + 1] if self._at + 1 < len(self._tokens) else _Token("end", "")
            self._at += 2
            return self._range(token.text, last) + self._skip()
        ignoring = token.text.endswith("i")
        text = self._text(token.text.removesuffix("i"))
        made = "".join(_either_case(c) if ignoring else literal(c) for c in text)
        return f"(?:{made}){self._skip()}"

    def _skip(self) -> str:
        return "" if self._terminal else self._grammar.between

    def _repeated(self, made: str) -> str:
        sign = self._next.text if self._next.kind == "sign" else ""
        if sign in ("?", "*", "+"):
            self._at += 1
            return f"(?:{made}){sign}"
        if sign not in ("~", "{"):
            return made
        self._at += 1
        low = high = self._number()
        if self._next.kind == "range" or (sign == "{" and self._take(",")):
            self._at += self._next.kind == "range"
            high = self._number()
        if sign == "{" and not self._take("}"):
            raise self._unread()
        if high < low:
            raise self._grammar.refusal(f"repeats from {low} to {high} times; give the smaller number first")
        return f"(?:{made}){{{low},{high}}}"

    def _number(self) -> int:
        token = self._next
        if token.kind != "number" or len(token.text) > 4 or int(token.text) > LARGEST_COUNT:
            raise self._grammar.refusal(f"repeats {shown(token.text)} times; give a number up to {LARGEST_COUNT}")
        self._at += 1
        return int(token.text)

    def _text(self, quoted: str) -> str:
        def plain(found: re.Match[str]) -> str:
            kind = found[1]
            if kind[0] in "xu" and len(kind) > 1:
                return chr(int(kind[1:], 16))
            if kind not in _PLAIN:
                raise self._grammar.refusal(f"has the escape {shown(found[0])} in a text; write the character itself")
            return _PLAIN[kind]

        return _ESCAPE.sub(plain, quoted[1:-1])

    def _range(self, first: str, last: _Token) -> str:
        ends = [self._text(one) for one in (first, last.text)] if last.kind == "text" else []
        if len(ends) != 2 or {len(one) for one in ends} != {1} or ends[0] > ends[1]:
            raise self._grammar.refusal('has a range that is none; write it as "a".."z"')
        return f"[{literal(ends[0])}-{literal(ends[1])}]"

    def _expression(self, token: str) -> str:
        body, _, flags = token[1:].rpartition("/")
        if flags.strip("u"):
            why = "write the expression without it"
            raise self._grammar.refusal(f"has the flag {shown(flags)} of an expression, which cannot be held; {why}")
        if fault := pattern_fault(body):
            raise self._grammar.refusal(f"has the expression {shown(token)}, which {fault}")
        return f"(?:{body.replace(chr(92) + '/', '/')})"


def _either_case(character: str) -> str:
    cases = dict.fromkeys((character, character.lower(), character.upper()))
    return literal(character) if len(cases) == 1 else f"(?:{'|'.join(map(literal, cases))})"
