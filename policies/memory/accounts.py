"""Page accounts: the bytes of KV pages of each account, cached ones included, counted as pages come and go.

The account of the sequence that made a page pays for it. With caps, it pays only as long as one of its sequences lists the
page, or none does (``pages.py`` passes the page on). ``worker_memory.py`` enforces the caps: a full account gives up its
own idle pages first, so with caps their order is kept by account.
"""

from __future__ import annotations

from ..requests.account import is_offline_account


class PageAccounts:
    """The accounts of one worker, numbered as they first appear; the numbers are a column of the page table."""

    def __init__(self, *, ordered: bool) -> None:
        self.names: list[str | None] = []  # None: the number is unused
        self.ordered = ordered  # whether idle pages are ordered by account
        self._numbers: dict[str, int] = {}
        self.unused: list[int] = []  # numbers
        self.offline: set[int] = set()  # numbers of offline accounts, whose pages no client waits for
        self._held: list[int] = []  # bytes
        self._idle: list[int] = []  # bytes of idle pages, a part of the held ones
        self._order: list[dict[int, None]] = []  # handles of idle pages, least recently released first
        self._first: list[dict[int, None]] = []  # and handles of idle pages that go before all others

    def number(self, name: str) -> int:
        """Return the number of an account; a new one is added."""
        number = self._numbers.get(name)
        if number is None:
            if self.unused:
                number = self.unused.pop()
            else:
                number = len(self.names)
                self._add(None)
            self.names[number], self._numbers[name] = name, number
            if is_offline_account(name):
                self.offline.add(number)
        return number

    def _add(self, name: str | None) -> None:
        self.names.append(name)
        self._held.append(0)
        self._idle.append(0)
        self._order.append({})
        self._first.append({})

    def forget(self, name: str) -> bool:
        """Free the number of an account without pages; return whether it has none."""
        number = self._numbers.get(name)
        if number is not None:
            if self._held[number]:
                return False
            del self._numbers[name]
            self.names[number] = None
            self.offline.discard(number)
            self.unused.append(number)
        return True

    def restore(self, names: list[str | None], unused: list[int]) -> None:
        """Restore the numbering of accounts, without pages."""
        for number, name in enumerate(names):
            self._add(name)
            if name is not None:
                self._numbers[name] = number
                if is_offline_account(name):
                    self.offline.add(number)
        self.unused = list(unused)

    def allocate(self, number: int, nbytes: int) -> None:
        """Count a new page."""
        self._held[number] += nbytes

    def pass_on(self, number: int, to: int, nbytes: int) -> None:
        """Move a page that is not idle to another account."""
        self._held[number] -= nbytes
        self._held[to] += nbytes

    def free(self, number: int, nbytes: int) -> None:
        """Remove a page that is gone and was no longer idle."""
        self._held[number] -= nbytes

    def rest(self, number: int, handle: int, nbytes: int, *, early: bool) -> None:
        """Note that a page became idle: the most recently used one of its kind. ``early``: it goes before all others."""
        self._idle[number] += nbytes
        if self.ordered:
            (self._first if early else self._order)[number][handle] = None

    def reactivate(self, number: int, handle: int, nbytes: int) -> None:
        """Note that an idle page is listed again, or is about to be freed."""
        self._idle[number] -= nbytes
        if self.ordered:
            order = self._order[number]
            del (order if handle in order else self._first[number])[handle]

    def forget_idle(self) -> None:
        """Forget all idle pages, because they were cut; they are added again in their order."""
        self._idle = [0] * len(self.names)
        self._order = [{} for _ in self.names]
        self._first = [{} for _ in self.names]

    def held(self, name: str) -> int:
        """Return the bytes of an account's pages."""
        number = self._numbers.get(name)
        return 0 if number is None else self._held[number]

    def idle(self, name: str) -> int:
        """Return the bytes of an account's idle pages."""
        number = self._numbers.get(name)
        return 0 if number is None else self._idle[number]

    def oldest(self, name: str) -> int:
        """Return the account's idle page that goes next; -1: it has none, or no order is kept."""
        number = self._numbers.get(name)
        if number is None:
            return -1
        return next(iter(self._first[number] or self._order[number]), -1)

    def all_held(self) -> dict[str, int]:
        """Return the bytes of every account that has pages."""
        return {name: held for name, held in zip(self.names, self._held, strict=True) if held and name is not None}

    def fork(self) -> PageAccounts:
        copy = PageAccounts(ordered=self.ordered)
        copy.names = self.names.copy()
        copy._numbers = self._numbers.copy()
        copy.unused = self.unused.copy()
        copy._held, copy._idle = self._held.copy(), self._idle.copy()
        copy._order, copy.offline = [order.copy() for order in self._order], self.offline.copy()
        copy._first = [order.copy() for order in self._first]
        return copy

    def check(self, held: list[int], idle: list[int], order: list[list[int]]) -> None:
        """Raise AssertionError unless held bytes, idle bytes and idle handles of each account match the page table."""
        assert self._numbers == {name: n for n, name in enumerate(self.names) if name is not None}, "an account is lost"
        offline = {n for n, name in enumerate(self.names) if name is not None and is_offline_account(name)}
        assert self.offline == offline, "an account is taken for what it is not"
        assert sorted(self.unused) == [n for n, name in enumerate(self.names) if name is None], "a number is lost"
        assert self._held == held, "pages of an account are counted wrongly"
        assert self._idle == idle, "idle pages of an account are counted wrongly"
        pairs = zip(self._first, self._order, strict=True)
        found = [[*first.items(), *handles.items()] for first, handles in pairs]
        kept = [[(handle, None) for handle in handles] if self.ordered else [] for handles in order]
        assert found == kept, "the order of an account's idle pages is broken"
