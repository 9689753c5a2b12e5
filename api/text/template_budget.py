"""The work budget of a chat template, in steps, and the prices of a template's operations.

A step is about a microsecond: a loop iteration, a call, or ``UNITS`` units. A unit is about a nanosecond, the time to copy a
character. Prices are upper bounds, known before the work is done, so that no single call holds the interpreter lock for
long: Python code releases it every few milliseconds, a filter in C only at its end.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from jinja2.utils import Namespace

STEPS, PER_MESSAGE = 200_000, 1000  # steps for one conversation, plus steps for each of its messages
UNITS = 1024  # units of a step
PER_CHARACTER = 16  # units for each character of the messages: the number of passes over all of them
MOST_CHARACTERS = 20_000_000  # most characters of one value
MOST_UNITS = 64_000_000  # most units of one call
MOST_BITS = 4096  # most bits of an integer
ITEM = 256  # units for a list item, besides its contents
_DEFAULT = 16  # units for each character, for unlisted filters and methods
_NUMBERS = re.compile(r"\d+")
_BLANKS = " \t\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"

# units for each character of a text, whatever the other arguments
LINEAR = {
    **dict.fromkeys(("startswith", "endswith", "removeprefix", "removesuffix"), 1),
    **dict.fromkeys(("find", "index", "count", "partition", "truncate", "string"), 4),
    **dict.fromkeys(("escape", "e", "forceescape", "safe", "capitalize", "isascii"), 16),
    **dict.fromkeys(("upper", "lower", "casefold", "swapcase", "striptags", "int", "float", "wordcount"), 96),
    **dict.fromkeys(("title", "urlencode"), 512),
    "urlize": 4096,
    "pprint": 2048,
}
# filters that walk a list without touching the items' contents: units for each item
SHALLOW = {
    **dict.fromkeys(("attr", "count", "d", "default", "first", "items", "last", "length", "random"), 1),
    **dict.fromkeys(("list", "map", "reject", "rejectattr", "reverse", "select", "selectattr"), 512),
}
ORDERING = {"dictsort", "groupby", "max", "min", "sort", "unique"}  # filters that compare items
# filters and methods that print their arguments, with a width
PADDING = {"center", "format", "format_map", "ljust", "rjust", "zfill"}
_CASELESS = {"upper", "lower", "capitalize", "casefold", "swapcase"}  # cheap for ASCII texts


class BudgetExceeded(Exception):
    """An excess of work by a template; the text completes a sentence that begins with its name."""


class TemplateBudget(threading.local):
    """The remaining budget of the rendering in this thread. Unlimited while none runs."""

    left, all = math.inf, 0

    def spend(self, units: float, characters: float = 0) -> None:
        """Take the steps for work of ``units`` that makes a value of ``characters``; raise BudgetExceeded."""
        steps = 1 + units // UNITS
        if characters > MOST_CHARACTERS and self.all:
            shown = f"{characters:.0f}" if characters < 1e15 else "10^15 or more"
            raise BudgetExceeded(f"makes a value of {shown} characters, more than {MOST_CHARACTERS}")
        if steps > self.left or (units > MOST_UNITS and self.all):
            raise BudgetExceeded(f"takes more than {self.all} steps (turns of loops, calls, {UNITS} characters of a value)")
        self.left -= steps

    def spend_text(self, characters: float) -> None:
        """Take the steps for making a text."""
        self.spend(characters, characters)

    def weight(self, value: Any) -> float:
        """Return the approximate printed length of ``value``; stop at the limit.

        An item counts once for each place that refers to it.
        """
        if isinstance(value, str):
            return len(value)
        total, rest = 0.0, [iter((value,))]
        while rest and total <= min(self.left * UNITS, MOST_UNITS):
            for one in rest[-1]:
                inner: Collection[Any] = ()
                if isinstance(one, str | bytes):
                    total += len(one)
                elif isinstance(one, int):
                    total += one.bit_length() // 3
                elif isinstance(one, Namespace):
                    inner = [one._Namespace__attrs]
                elif isinstance(one, Collection):
                    inner = [*one, *one.values()] if isinstance(one, Mapping) else one
                if inner:
                    total += ITEM * len(inner)
                    rest.append(iter(inner))
                    break
            else:
                rest.pop()
        return total

    def listed(self, value: Any) -> Any:
        """Return a list in place of a generator, which has no known length. Each item is paid for."""
        if not isinstance(value, Iterator):
            return value
        found = []
        for one in value:
            self.spend(ITEM)
            found.append(one)
        return found

    def spend_for(self, name: str, given: Sequence[Any]) -> None:
        """Take the steps for a filter or method of that name. ``given``: its arguments, first the text or list."""
        first = given[0] if given else ""
        if name in SHALLOW:
            self.spend(SHALLOW[name] * length(first))
        elif name in ORDERING:
            self.spend(2 * self.weight(first) + 2048 * length(first))
        elif name == "wordwrap":
            self.spend(length(first) ** 2)
        elif name in PADDING:
            self._take_padded(given)
        elif name == "round":
            self.spend(4096 * count(given[1]) if len(given) > 1 and isinstance(given[1], int) else 0)
        elif isinstance(first, str | bytes) and name in _TEXTS:
            units, characters = _TEXTS[name](first, given[1:], self.weight)
            self.spend(units, characters)
        elif name in LINEAR:
            cheap = name in _CASELESS and isinstance(first, str) and first.isascii()
            self.spend((1 if cheap else LINEAR[name]) * self.weight(first))
        else:
            sizes = [max(1.0, count(one) if isinstance(one, int) else self.weight(one)) for one in given]
            if name == "tojson":
                sizes[0] = max(1.0, self.weight(first))  # an integer that is printed, not a width
            size = sizes[0] * max([1.0, *sizes[1:]])
            self.spend(_DEFAULT * size, size)

    def _take_padded(self, given: Sequence[Any]) -> None:
        """Take the steps for a format or a padded text: its length, all widths in it, and its printed arguments."""
        form, rest = given[0], given[1:]
        widths = sum(count(one) for one in rest if isinstance(one, int))
        printed = max([0.0, *(self.weight(one) for one in rest)])
        if isinstance(form, str):
            if re.search(r"%[^%a-zA-Z]*\*|\{[^{}]*\{", form):
                widths = math.inf  # a width that is computed or nested
            widths += sum(float(found) for found in _NUMBERS.findall(form))
            printed *= max(1, form.count("%") + form.count("{"))
        self.spend_text(self.weight(form) + widths + printed)


def count(number: int) -> float:
    """Return an integer as a float that is large enough for any bound."""
    return float(min(abs(number), 1 << 60))


def length(value: Any) -> int:
    """Return the number of items of a text or collection, 0 for anything else."""
    return len(value) if isinstance(value, Collection) else 0


def check_integer(bits: float) -> None:
    """Raise BudgetExceeded for an integer of more bits than ``MOST_BITS``."""
    if bits > MOST_BITS:
        shown = f"{bits:.0f}" if bits < 1e15 else "10^15 or more"
        raise BudgetExceeded(f"makes an integer of {shown} bits, more than {MOST_BITS}")


Weigh = Callable[[Any], float]
Price = tuple[float, float]  # units, and characters of the resulting text


def _replaced(text: str, rest: Sequence[Any], weigh: Weigh) -> Price:
    """Price ``replace`` by its result: ``new`` takes the place of each occurrence of ``old``."""
    old, new = (str(one) for one in (*rest, "", "")[:2])
    found = text.count(old)
    return len(text) + 16.0 * found, len(text) + float(found) * max(0, len(new) - len(old))


def _split(text: str, rest: Sequence[Any], weigh: Weigh) -> Price:
    separator = next((one for one in rest if isinstance(one, str)), "")
    parts = text.count(separator) if separator else sum(map(text.count, _BLANKS))
    return 4.0 * len(text) + ITEM * parts, len(text)


def _joined(text: str, rest: Sequence[Any], weigh: Weigh) -> Price:
    """Price the method ``join``, which puts its text between the items."""
    items = rest[0] if rest else ()
    made = weigh(items) + float(len(text)) * length(items)
    return made, made


def _joined_by(text: str, rest: Sequence[Any], weigh: Weigh) -> Price:
    """Price the filter ``join`` on a text: the characters are the items."""
    made = len(text) * (1.0 + max([0.0, *map(weigh, rest)]))
    return made + ITEM * len(text), made


def _expanded(text: str, rest: Sequence[Any], weigh: Weigh) -> Price:
    made = len(text) + text.count("\t") * max([8.0, *(count(one) for one in rest if isinstance(one, int))])
    return made, made


def _translated(text: str, rest: Sequence[Any], weigh: Weigh) -> Price:
    table = rest[0] if rest else {}
    longest = max([1.0, *map(weigh, table.values())]) if isinstance(table, Mapping) else weigh(table)
    return 96.0 * len(text) + len(text) * longest, len(text) * longest


def _indented(text: str, rest: Sequence[Any], weigh: Weigh) -> Price:
    lines = 1.0 + sum(map(text.count, _BLANKS[2:]))
    made = len(text) + lines * max([4.0, *(count(one) if isinstance(one, int) else weigh(one) for one in rest)])
    return made + ITEM * lines, made


def _items_of_text(text: str, rest: Sequence[Any], weigh: Weigh) -> Price:
    return 96.0 * len(text), len(text)


def _stripped(text: str, rest: Sequence[Any], weigh: Weigh) -> Price:
    """Price ``strip``, which looks for every character of the text in all characters that it is given."""
    return len(text) * (1.0 + max([0.0, *map(weigh, rest)]) / 32), len(text)


def _sought_from_end(text: str, rest: Sequence[Any], weigh: Weigh) -> Price:
    """Price a search from the end: unlike one from the start it may compare all that is sought at every place again."""
    return len(text) * (4.0 + max([0.0, *map(weigh, rest)]) / 4), len(text)


def _split_from_end(text: str, rest: Sequence[Any], weigh: Weigh) -> Price:
    return _split(text, rest, weigh)[0] + _sought_from_end(text, rest, weigh)[0], len(text)


def _coded(text: str, rest: Sequence[Any], weigh: Weigh) -> Price:
    """Price ``encode`` and ``decode``. Some codecs take the square of a length, some error handlers name each character."""
    words = {one.casefold().replace("_", "-") for one in rest if isinstance(one, str)}
    if not words <= _CODECS | _HANDLERS:
        return float(len(text)) ** 2, 128.0 * len(text)
    named = bool(words & _NAMING)
    return (512.0 if named else 16.0) * len(text), (128.0 if named else 4.0) * len(text)


_NAMING = {"backslashreplace", "namereplace", "xmlcharrefreplace"}
_HANDLERS = {"strict", "ignore", "replace", "surrogateescape", "surrogatepass", *_NAMING}
_CODECS = {"ascii", "us-ascii", "latin-1", "latin1", "iso-8859-1", "utf-8", "utf8", "utf-16", "utf-32"}
_TEXTS: dict[str, Callable[[Any, Sequence[Any], Weigh], Price]] = {
    **dict.fromkeys(("strip", "lstrip", "rstrip", "trim"), _stripped),
    **dict.fromkeys(("rfind", "rindex", "rpartition"), _sought_from_end),
    **dict.fromkeys(("encode", "decode"), _coded),
    "replace": _replaced,
    "split": _split,
    "rsplit": _split_from_end,
    "splitlines": _split,
    "expandtabs": _expanded,
    "translate": _translated,
    "indent": _indented,
    "list": _items_of_text,
    "str.join": _joined,
    "join": _joined_by,
}
