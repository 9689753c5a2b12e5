"""The drafts of the sequences that have any, and the acceptance of each source by application, which new ones begin with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..drafts.acceptance import Acceptance
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
        self._seen: dict[str, dict[str, Acceptance]] = {}  # by application, then by source, a tier by its model id

    def takes(self, submission: Submission) -> bool:
        """Return whether a sequence gets drafts: it asks for them and is not offline."""
        return self.wanted and submission.drafts is not None and submission.priority < FIRST_OFFLINE

    def add(self, s: int, submission: Submission, application: str) -> None:
        """Add a sequence that asks for drafts."""
        assert submission.drafts is not None
        seen = self._seen.setdefault(application, {})
        for key in keys(submission.drafts):
            if key not in seen:
                seen[key] = Acceptance()
        self._rows[s] = RowDrafts(submission.drafts, submission.prompt_length, application, seen)
        self.paces.add(s, application, submission.drafts)

    def remove(self, s: int) -> None:
        """Forget a sequence that has left."""
        self._rows.pop(s, None)
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
        for s in stopped:
            self.paces.remove(s)
        return stopped

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
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "wanted": self.wanted,
            "seen": {
                application: {key: seen.snapshot() for key, seen in sources.items()}
                for application, sources in self._seen.items()
            },
            "rows": [[s, drafts.snapshot()] for s, drafts in self._rows.items()],
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
        return table

    def check(self, plain_until: Mapping[int, int]) -> None:
        """Raise AssertionError unless exactly the sequences that ever draw with drafts have some.

        ``plain_until``: of all live sequences, as in ``Columns``.
        """
        self.paces.check(self._rows)
        drafting = {s for s, position in plain_until.items() if position != NEVER_DRAFTED}
        assert drafting == (self._rows.keys() if self.wanted else set()), "a sequence draws with drafts and has none"
