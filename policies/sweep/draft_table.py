"""The draft table: the drafts of each sequence, and the acceptance of each source by application, for new sequences.

It also knows the draft row of each sequence for which another model drafts (``draft_rows.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ..drafts.acceptance import Acceptance
from ..drafts.options import DraftOptions
from ..drafts.pace import PaceTable
from ..drafts.row_drafts import RowDrafts, keys
from ..plain import Plain
from ..requests.urgency import FIRST_OFFLINE
from .columns import NEVER_DRAFTED
from .events import Submission


class DraftTable:
    """The drafts of one worker. ``wanted``: False if no device verifies them, as in forecasts."""

    def __init__(self) -> None:
        self.wanted = True
        self.paces = PaceTable()
        self._rows: dict[int, RowDrafts] = {}  # by sequence
        self._seen: dict[str, dict[str, Acceptance]] = {}  # by application, then by source, a tier or model by its id
        self._draft_rows: dict[int, int] = {}  # sequence -> its draft row
        self._behind: list[int] = []  # sequences whose draft rows catch up
        self._resting: dict[int, int] = {}  # sequence -> tokens that it has before another draft row is opened

    def takes(self, submission: Submission) -> bool:
        """Return whether a sequence gets drafts: it asks for them, or its grammar forces tokens, and it is not offline."""
        drafts = submission.drafts
        some = (drafts is not None and drafts.any) or _forces(submission)
        return self.wanted and some and submission.priority < FIRST_OFFLINE

    def add(self, s: int, submission: Submission, application: str) -> None:
        """Add a sequence that gets drafts."""
        options = submission.drafts or DraftOptions()
        seen = self._seen.setdefault(application, {})
        for key in keys(options):
            if key not in seen:
                seen[key] = Acceptance()
        forcing = _forces(submission)
        self._rows[s] = RowDrafts(options, submission.prompt_length, application, seen, forcing=forcing)
        self.paces.add(s, application, options)

    def force(self, s: int, length: int, tokens: list[int]) -> None:
        """Note the tokens that must follow the first ``length`` ones of a sequence."""
        if s in self._rows:
            self._rows[s].force(length, tokens)

    def remove(self, s: int) -> None:
        """Forget a sequence that has left."""
        self._rows.pop(s, None)
        self._resting.pop(s, None)
        self.paces.remove(s)

    def of(self, s: int) -> RowDrafts:
        return self._rows[s]

    def sequences(self) -> list[int]:
        """Return the sequences with drafts."""
        return list(self._rows)

    def stop(self) -> list[int]:
        """Draft no more; return the sequences that did."""
        self.wanted, stopped = False, list(self._rows)
        self._rows.clear()
        self._resting.clear()
        for s in stopped:
            self.paces.remove(s)
        return stopped

    # draft rows ------------------------------------------------------------------------------------------------------

    def draft_row(self, s: int) -> int:
        """Return the draft row of a sequence; -1: it has none."""
        return self._draft_rows.get(s, -1)

    def targets(self) -> list[int]:
        """Return the sequences with draft rows."""
        return list(self._draft_rows)

    def target(self, draft_row: int) -> int:
        """Return the sequence that a draft row drafts for; -1: it drafts for none any more."""
        return next((s for s, row in self._draft_rows.items() if row == draft_row), -1)

    def link(self, s: int, draft_row: int) -> None:
        """Give a sequence a draft row."""
        self._draft_rows[s] = draft_row

    def unlink(self, s: int, until: int = 0) -> int:
        """Take the draft row of a sequence from it; return the row. It gets no other before it has ``until`` tokens."""
        self.catch_up(s, wanted=False)
        if until:
            self._resting[s] = until
        return self._draft_rows.pop(s)

    def rests(self, s: int, length: int) -> bool:
        """Return whether a sequence with this many tokens must not get a draft row yet."""
        return length < self._resting.get(s, 0)

    def catch_up(self, s: int, *, wanted: bool) -> None:
        """Let the draft row of a sequence catch up from now on, or no more."""
        if wanted and s not in self._behind:
            self._behind.append(s)
        elif not wanted and s in self._behind:
            self._behind.remove(s)

    @property
    def behind(self) -> list[int]:
        """The sequences whose draft rows catch up."""
        return self._behind.copy()

    def forget(self, applications: Iterable[str]) -> None:
        """Forget the acceptance of applications that are gone and have no sequences."""
        used = {drafts.application for drafts in self._rows.values()}
        for application in applications:
            if application not in used:
                self._seen.pop(application, None)
                self.paces.forget(application)

    def __len__(self) -> int:
        return len(self._rows)

    # copies ----------------------------------------------------------------------------------------------------------

    def fork(self) -> DraftTable:
        copy = DraftTable()
        copy.wanted, copy.paces = self.wanted, self.paces.fork()
        copy._seen = {
            application: {key: seen.fork(None) for key, seen in sources.items()}
            for application, sources in self._seen.items()
        }
        copy._rows = {s: drafts.fork(copy._seen[drafts.application]) for s, drafts in self._rows.items()}
        copy._draft_rows, copy._behind = self._draft_rows.copy(), self._behind.copy()
        copy._resting = self._resting.copy()
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "wanted": self.wanted,
            "seen": {
                application: {key: seen.snapshot() for key, seen in sources.items()}
                for application, sources in self._seen.items()
            },
            "rows": [[s, drafts.snapshot()] for s, drafts in self._rows.items()],
            "draft_rows": [[s, row] for s, row in self._draft_rows.items()],
            "behind": self._behind.copy(),
            "resting": [[s, until] for s, until in self._resting.items()],
            "paces": self.paces.snapshot(),
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> DraftTable:
        table = cls()
        table.wanted, table.paces = data["wanted"], PaceTable.restore(data["paces"])
        table._seen = {
            application: {key: Acceptance.restore(seen, None) for key, seen in sources.items()}
            for application, sources in data["seen"].items()
        }
        for s, drafts in data["rows"]:
            table._rows[s] = RowDrafts.restore(drafts, table._seen[drafts["application"]])
        table._draft_rows = dict(data["draft_rows"])
        table._behind, table._resting = list(data["behind"]), dict(data["resting"])
        return table

    def check(self, plain_until: Mapping[int, int], draft_rows: Collection[int]) -> None:
        """Raise AssertionError unless exactly the sequences that ever draw with drafts have some.

        ``plain_until``: of all live sequences, as in ``Columns``. ``draft_rows``: all draft rows that are in use.
        """
        assert sorted(self._draft_rows.values()) == sorted(draft_rows), "a draft row is of no sequence, or of two"
        assert self._draft_rows.keys() <= self._rows.keys(), "a sequence without drafts has a draft row"
        assert {*self._behind} <= self._draft_rows.keys(), "a draft row that is not there catches up"
        assert self._resting.keys() <= self._rows.keys(), "a sequence without drafts rests from them"
        self.paces.check(self._rows)
        drafting = {s for s, position in plain_until.items() if position != NEVER_DRAFTED}
        assert drafting == (self._rows.keys() if self.wanted else set()), "a sequence draws with drafts and has none"


def _forces(submission: Submission) -> bool:
    grammar = submission.sampling.grammar
    return grammar is not None and grammar.forced
