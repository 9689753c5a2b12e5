"""A device without tensors that obeys plans, and asserts that what it reads is what was written for that very prefix.

It keeps, for each slot and offset, what a real one would compute: a digest of the lineage and of all tokens up to the
position. A row may be computed only if every earlier position of every local layer holds the digest of its own prefix, so a
page that is shared wrongly, freed early or written late is seen at once. The "model" samples a token that depends on the
whole prefix.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from blockwright.policies.adaptive.guessing import guessing_chain
from blockwright.policies.memory.slots import SlotAllocator
from blockwright.policies.model.chain import Chain, Component
from blockwright.policies.model.lineage import lineages
from blockwright.policies.model.runs import Run
from blockwright.policies.plan.pooling import Pooling
from blockwright.policies.plan.sweep_plan import (
    NO_SLOT,
    NOT_FINITE,
    HiddenRows,
    PageImport,
    SetPages,
    SetSampling,
    Step,
    SweepPlan,
    SweepResult,
    WriteTokens,
)
from blockwright.policies.sweep.page_events import MoveSlots, PagesArrived, SendPages
from blockwright.policies.sweep.state import SweepState

VOCABULARY = 50
CHUNK = 64 * 1024


def next_token(application: str, tokens: tuple[int, ...]) -> int:
    """The fake model."""
    # Of numbers alone, which hash alike in every process.
    return hash((*application.encode(), tokens)) % VOCABULARY


@dataclass(frozen=True)
class PagesOnTheWay:
    """Pages between two workers. ``kv``: by arena, of each slot what is at its offsets."""

    event: PagesArrived
    kv: dict[str, list[dict[int, int]]]


@dataclass
class FakeDevice:
    """Obeys plans in order; asserts that what it reads is what was written for that very prefix."""

    state: SweepState
    applications: dict[str, str]  # route -> application
    tokens: dict[int, list[int]] = field(default_factory=dict)
    slots: dict[tuple[int, int, int], int] = field(default_factory=dict)  # (row, layer, page) -> slot
    kv: dict[tuple[str, int, int], int] = field(default_factory=dict)  # (arena, slot, offset) -> digest of the prefix
    backed: set[tuple[str, int]] = field(default_factory=set)  # (arena, chunk unit)
    computed_tokens: int = 0
    entered: int = 0  # positions that began at an exit
    composed: set[Run] = field(default_factory=set)
    pages: dict[int, PagesOnTheWay] = field(default_factory=dict)  # that came, by number
    lines: dict[str, list[bytes]] = field(default_factory=dict)  # by application
    agreeing: int = 60  # drafts of a tier in 100 that are the model's own token
    alike: int = 60  # guesses of hidden states in 100 that are good
    judged: dict[int, list[float]] = field(default_factory=dict)  # likeness of the guesses of the plan under way
    supposed: dict[int, set[int]] = field(default_factory=dict)  # row -> positions that were computed on a guess
    mistaken: int = 0  # tokens that were drawn on a bad guess
    drafts: int = 0  # drawn by tiers and other models
    drafts_of_models: int = 0  # of these, by other models
    pools: dict[int, tuple[Pooling, list[int]]] = field(default_factory=dict)  # row -> its pooling, tokens pooled so far
    forced: int = 0  # times that tokens were forced
    overflows: dict[str, int] = field(default_factory=dict)  # request -> tokens from which on its model gives no number

    def compose(self) -> None:
        """What the routes in force need; everything else is dropped, as after unloading."""
        self.composed = {run for local in self.state.parts.routes.all_in_force() for run in local.every_run}

    def execute(self, plan: SweepPlan, sequences: list[int]) -> SweepResult:
        for edit in plan.memory:
            for unit in range(edit.offset, edit.offset + len(edit.chunks)):
                if edit.back:
                    self.backed.remove((edit.arena, unit))
                else:
                    assert (edit.arena, unit) not in self.backed
                    self.backed.add((edit.arena, unit))
        for came in plan.imports:
            self._import(self.pages.pop(came.number), came)
        for change in plan.edits:
            if isinstance(change, WriteTokens):
                column = self.tokens.setdefault(change.row, [])
                column[change.position :] = change.tokens
            elif isinstance(change, SetSampling):
                self.pools.pop(change.row, None)
                self.supposed.pop(change.row, None)
                if (pooling := change.params.pooling) is not None:
                    self.pools[change.row] = pooling, []
            elif isinstance(change, SetPages):
                for i, slot in enumerate(change.slots):
                    self.slots[change.row, change.layer + i, change.page] = slot
        by_id = self.state.parts.routes.runs
        # components that each position of a batch row has passed
        depth = {i: [self.state.parts.rows.route[s].runs[0].depth] * plan.count[i] for i, s in enumerate(sequences)}
        for rows in plan.resumed:
            self._hidden(plan, rows, sequences, depth, written=False)
        for step in plan.steps:
            assert by_id[step.run] in self.composed, "a plan names a run that was dropped"
            if step.guess:
                self._guess(plan, by_id[step.run], step, sequences)
                continue
            self._check_deltas(by_id[step.run], step, sequences)
            self._pass(plan, by_id[step.run], step, depth)
            self._step(plan, by_id[step.run], step, sequences)
        for rows in plan.kept:
            self._hidden(plan, rows, sequences, depth, written=True)
        self._check_ends(plan, sequences, depth)
        self.computed_tokens += plan.tokens
        return self._sample(plan, sequences)

    def _pass(self, plan: SweepPlan, run: Run, step: Step, depth: dict[int, list[int]]) -> None:
        """Every position passes each component once, in order. A head that drafts is no component of its rows."""
        for i, start, count in zip(step.batch, *plan.columns(step), strict=True):
            these = slice(start - plan.start[i], start - plan.start[i] + count)
            assert depth[i][these] == [run.depth] * count, "a row leaves out a component, or passes it twice"
            if not step.draft:
                depth[i][these] = [run.depth + len(run.components)] * count

    def _check_ends(self, plan: SweepPlan, sequences: list[int], depth: dict[int, list[int]]) -> None:
        """Every row has passed all components here, or all but the head."""
        for i, s in enumerate(sequences):
            last = self.state.parts.rows.route[s].runs[-1]
            end = last.depth + (0 if last.head and i not in {*plan.sample, *plan.score} else len(last.components))
            assert {*depth[i]} == {end}, "a row does not reach the end of its route"

    def _hidden(
        self, plan: SweepPlan, rows: HiddenRows, sequences: list[int], depth: dict[int, list[int]], *, written: bool
    ) -> None:
        """Hidden states are those of the very prefix behind the exit, when they are written and when they are read."""
        size, allocator = self.state.config.page_size, self.state.parts.memory.pages.allocator(rows.arena)
        for i in rows.batch:
            local = self.state.parts.rows.route[sequences[i]]
            lines = self._lineages(local.route.application)
            for place, position in enumerate(range(plan.start[i], plan.start[i] + plan.count[i])):
                slot = self.slots[plan.row[i], rows.column, position // size]
                if written and slot == NO_SLOT:
                    continue
                assert (rows.arena, slot * allocator.slot_bytes // CHUNK) in self.backed, "a slot without memory is used"
                if written:
                    at = min(depth[i][place], local.runs[-1].depth)
                    digest = hash((lines[at - 1], *self.tokens[plan.row[i]][: position + 1]))
                    self.kv[rows.arena, slot, position % size] = digest
                    continue
                found = self.kv.get((rows.arena, slot, position % size))
                tokens = self.tokens[plan.row[i]][: position + 1]
                exits = [exit.depth for exit in local.entries if found == hash((lines[exit.depth - 1], *tokens))]
                assert exits, "hidden states of another prefix or exit are read"
                depth[i][place] = exits[0]
                self.entered += 1

    def _import(self, pages: PagesOnTheWay, came: PageImport) -> None:
        offset = 0
        for sent in pages.event.groups:
            for group in [group for group in came.groups if group.arena == sent.arena]:
                assert group.offset == offset, "pages are looked for where they are not"
                for place, slot in zip(group.places, group.slots, strict=True):
                    assert (group.arena, slot * sent.slot_bytes // CHUNK) in self.backed, "a slot without memory is written"
                    for at, digest in pages.kv[group.arena][place].items():
                        self.kv[group.arena, slot, at] = digest
            offset += sent.slot_bytes * len(sent.layers) * len(pages.event.hashes)

    def move(self, effect: MoveSlots) -> None:
        """Slots have moved; what is left of the old ones is rubbish."""
        size, arena = self.state.config.page_size, effect.arena
        assert not {*effect.slots} & {*effect.targets}, "a slot is read and written"
        allocator = self.state.parts.memory.pages.allocator(arena)
        for slot, target in zip(effect.slots, effect.targets, strict=True):
            assert (arena, target * allocator.slot_bytes // CHUNK) in self.backed, "a slot without memory is written"
            for at in range(size):
                self.kv[arena, target, at] = self.kv.pop((arena, slot, at), 0)

    def export(self, effect: SendPages) -> PagesOnTheWay:
        """What a plan that is made later does not change any more."""
        kv: dict[str, list[dict[int, int]]] = {}
        for group, slots in zip(effect.groups, effect.slots, strict=True):
            size = self.state.config.page_size
            kv[group.arena] = [{at: self.kv[group.arena, slot, at] for at in range(size)} for slot in slots]
        return PagesOnTheWay(
            PagesArrived("", effect.batch, 0, effect.account, effect.request, effect.hashes, effect.groups), kv
        )

    def _check_deltas(self, run: Run, step: Step, sequences: list[int]) -> None:
        """Every row meets the deltas of its route in the run, and no others."""
        rows = self.state.parts.rows
        for i, number in zip(step.batch, step.delta or [0] * len(step.batch), strict=True):
            local = rows.route[sequences[i]]
            inside = [d for d, _ in local.deltas if run.depth <= d < run.depth + len(run.components)]
            assert number == (local.delta if inside else 0), "a row meets other deltas than its route has"

    def _draft(self, plan: SweepPlan, step: Step, sequences: list[int]) -> None:
        """Draft the token of the model itself, or a wrong one, as planted."""
        targets = {row.batch: row.target for row in plan.draft_rows}
        for i, start, count in zip(step.batch, *plan.columns(step), strict=True):
            target, end = targets.get(i, i), start + count
            tokens = self.tokens[plan.row[i]]
            known = tuple(tokens[:end])
            assert len(known) == end, "a draft is drawn before the one before it"
            assert self.tokens[plan.row[target]][:end] == [*known], "a draft row has other tokens than its target"
            self.drafts += 1
            drawn = next_token(self.state.parts.rows.route[sequences[target]].route.application, known)
            tokens[end:] = [drawn if hash(known) % 100 < self.agreeing else drawn ^ 1]
            if target != i:
                self.drafts_of_models += 1
                self.tokens[plan.row[target]][end:] = tokens[end:]

    def _step(self, plan: SweepPlan, run: Run, step: Step, sequences: list[int]) -> None:
        if run.head:
            if step.draft:
                self._draft(plan, step, sequences)
            return
        layers: list[tuple[int, int, SlotAllocator]] | None = None  # KV layer, depth, arena
        for local in self.state.parts.routes.planned():
            if run in local.runs:  # as in any other route that has it
                parts = self.state_components(local.route.application)
                attentions = [d for d, c in enumerate(parts) if c.kv]
                of = self.state.parts.memory.pages.allocator
                inside = [(n, d) for n, d in enumerate(attentions) if 0 <= d - run.depth < len(run.components)]
                layers = [(n, d, of(parts[d].kv.key)) for n, d in inside]  # type: ignore[union-attr]
                break
        assert layers is not None, "a plan names a run of no route"
        for i, start, count in zip(step.batch, *plan.columns(step), strict=True):
            supposed = self.supposed.setdefault(plan.row[i], set())
            for position in range(start, start + count):
                (supposed.add if i in plan.supposed else supposed.discard)(position)
            lines = self._lineages(self.state.parts.rows.route[sequences[i]].route.application)
            self._attend(plan.row[i], start, count, layers, lines, supposed)

    def _attend(
        self,
        row: int,
        start: int,
        count: int,
        layers: list[tuple[int, int, SlotAllocator]],
        lines: list[bytes],
        supposed: set[int],
    ) -> None:
        """Write positions, and read all before them. ``supposed``: those that were computed on a guess."""
        size, tokens = self.state.config.page_size, self.tokens[row]
        for layer, depth, allocator in layers:
            digest = hash(lines[depth])
            for position in range(start + count):
                if position < len(tokens):  # workers between the first and the last one get none
                    digest = hash((digest, tokens[position]))
                slot = self.slots[row, layer, position // size]
                unit = slot * allocator.slot_bytes // CHUNK
                assert (allocator.arena, unit) in self.backed, "a slot without memory is used"
                expected = hash((digest, "guess")) if position in supposed else digest
                if position >= start:
                    self.kv[allocator.arena, slot, position % size] = expected
                found = self.kv.get((allocator.arena, slot, position % size))
                assert found == expected, "attention reads a foreign or missing position"

    def _guess(self, plan: SweepPlan, run: Run, step: Step, sequences: list[int]) -> None:
        """Pass a surrogate, whose KV lies behind the chain's; or judge a guess as planted."""
        guess = plan.guesses[step.guess - 1]
        if step.head:
            assert step.batch == guess.sent.batch, "a guess is judged that did not leave"
            self.judged[step.guess] = [0.99 if self._alike(plan, i) else 0.5 for i in step.batch]
            return
        assert step.batch == guess.batch, "a row does not pass the surrogate"
        for i, start, count in zip(step.batch, *plan.columns(step), strict=True):
            local = self.state.parts.rows.route[sequences[i]]
            assert local.guess is not None
            own, name = self.state_components(local.route.application), guessing_chain(local.route.application)
            other = self.state_components(name)
            below = sum(c.kv is not None for c in own[: local.guess.depth])
            behind = sum(c.kv is not None for c in own)
            layers = [
                (behind - below + n, depth, self.state.parts.memory.pages.allocator(other[depth].kv.key))  # type: ignore[union-attr]
                for n, depth in enumerate(d for d, c in enumerate(other) if c.kv)
                if run.depth <= depth < run.depth + len(run.components)
            ]
            self._attend(plan.row[i], start, count, layers, self._lineages(name), set())

    def _alike(self, plan: SweepPlan, i: int) -> bool:
        """Return True if a guess after these tokens is good; on a bad one another token is drawn."""
        return hash((17, *self.tokens[plan.row[i]][: plan.start[i] + 1])) % 100 < self.alike

    def _lineages(self, application: str) -> list[bytes]:
        if application not in self.lines:
            self.lines[application] = lineages(self.state_components(application), "")
        return self.lines[application]

    def state_components(self, application: str) -> tuple[Component, ...]:
        return self.chains[application].components

    chains: dict[str, Chain] = field(default_factory=dict)

    def _sample(self, plan: SweepPlan, sequences: list[int]) -> SweepResult:
        result = SweepResult(plan.number)
        result.likeness = [self.judged.pop(1 + place, []) for place in range(len(plan.guesses))]
        result.scores = [[] for _ in plan.score]
        for i in plan.score:
            if plan.row[i] in self.pools and i not in plan.sample:
                self._pool(plan, i)
        for i in plan.sample:
            if plan.row[i] in self.pools:
                result.tokens.append(0)
                result.vectors.append((i, self._pool(plan, i)))
                continue
            end = plan.start[i] + plan.count[i]
            tokens = self.tokens[plan.row[i]]
            application = self.state.parts.rows.route[sequences[i]].route.application
            assert not self.state.parts.grammars.waits(sequences[i]), "a token is drawn before its grammar is compiled"
            overflow = self.overflows.get(self.state.parts.rows.submission[sequences[i]].request, 1 << 62)
            drawn: list[int] = []
            for at in range(plan.start[i] + 1 if i in plan.verify else end, end + 1):
                drawn.append(NOT_FINITE if at >= overflow else next_token(application, tuple(tokens[:at])))
                if i in plan.supposed and not self._alike(plan, i) and drawn[-1] >= 0:
                    drawn[-1] ^= 1
                    self.mistaken += 1
                if at == end or drawn[-1] != tokens[at]:
                    tokens[at:] = [max(drawn[-1], 0)]
                    break
            result.tokens.append(drawn[0])
            if i in plan.verify:
                result.verified.append(drawn[1:])
            grammar = self.state.parts.rows.submission[sequences[i]].sampling.grammar
            if grammar is not None and grammar.forced and (found := self._forced(application, tokens)):
                result.forced.append((len(result.tokens) - 1, found))
        return result

    def _pool(self, plan: SweepPlan, i: int) -> bytes:
        """Pool the positions of a row; return the vector of its tokens so far, as its pooling sees them."""
        pooling, seen = self.pools[plan.row[i]]
        start, end = plan.start[i], plan.start[i] + plan.count[i]
        tokens = self.tokens[plan.row[i]][:end]
        if pooling.whole:
            assert len(seen) == start, "a state is pooled twice, or not at all"
            seen += tokens[start:]
        return vector(tokens if not pooling.whole else seen)

    def _forced(self, application: str, tokens: list[int]) -> list[int]:
        """Return the next tokens if the grammar leaves no choice, which hangs on the tokens before."""
        known = tuple(tokens)
        for _ in range(hash(known) % 5):
            known = (*known, next_token(application, known))
        self.forced += len(known) > len(tokens)
        return [*known[len(tokens) :]]


def vector(tokens: list[int]) -> bytes:
    """The fake vector of a text."""
    return repr(tokens).encode()
