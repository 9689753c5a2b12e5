"""Operations of a CUDA back end over addresses: the one interface between its host code and what computes.

Two implementations: ``ops_triton.py`` launches the kernels of ``kernels/`` (on a card, or interpreted on a CPU), and
``ops_torch.py`` computes the same with torch. Both see memory as addresses (int, bytes), because a reserved range may begin
with memory that is not mapped, which a tensor may not. An operation only queues work, allocates nothing that outlives it and
never waits. All arrays are contiguous and begin at multiples of 16 bytes. Rows of a step
whose table row is -1 are padding: what an operation computes for them is never read, and nothing of them is written to slots
or tables.

Types: *model* is the model's type (float32 or bfloat16). Inside a component everything is float32, except the inputs of
products, which are rounded to the model's type, as are hidden states, keys and values. So products return float32
(``Sum``), and the
operation that reads a sum adds its parts, its bias and the rows' deltas, in this order.

Legend: T tokens of a step, N rows of it, D hidden width, W width of a product, Q outputs of it, Z parts of a sum, I
inner width
of a feed-forward, H heads, K KV heads, E head size, V vocabulary, R table rows, M longest sequence, L layers of slots, P
pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from ..model.config import AttentionConfig, NormConfig

# Fields of a delta's record for one role of a product (``Terms``): int64 each.
A, B, RANK, COLUMN, SCALE, SHIFT, FIRST, ROWS, LOW_BIAS, ACTIVATION = range(10)
FIELDS = 10
RANK_UNIT = 16  # ranks and widths of bottlenecks are padded to multiples, with zeros
DELTA_TILE = 16  # rows of a tile of tokens with one delta
# Codes of activations in records, and in ``activate``. A low-rank term has none.
ACTIVATIONS = {"": 0, "silu": 1, "gelu": 2, "gelu_tanh": 3, "gelu_new": 4, "gelu_fast": 5, "relu": 6}
BEST = 32  # most logits of a position that ``Ops.logprobs`` gives
READS = {"output": 0, "sum": 1, "input": 2}  # what a bottleneck reads


@dataclass(frozen=True, slots=True)
class Weight:
    """The rows of a product: one matrix, or those of q, k, v or gate, up, one behind the other in the output.

    ``parts``: address of [rows, W] in the model's type, and rows, of each matrix; at most three.
    """

    parts: tuple[tuple[int, int], ...]
    width: int  # W

    @property
    def outputs(self) -> int:
        """Q."""
        return sum(rows for _, rows in self.parts)


@dataclass(frozen=True, slots=True)
class Sum:
    """The result of a product, still in parts: float32 [Z, T, Q], which its reader adds in order, from zero on.

    Then come ``bias``, then ``delta`` for rows whose number is not 0.
    """

    address: int
    parts: int  # Z
    outputs: int  # Q
    # as Weight.parts: address of [rows] in the model's type, and rows; of each matrix, or empty: no bias
    biases: tuple[tuple[int, int], ...] = ()
    delta: int = 0  # address of float32 [T, Q], read only where ``DeviceStep.number_T`` is not 0; 0: no row has a delta


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm: configuration, address of the weight and of the bias (kind "layer"), both [width] in the model's type.

    Computed in float32 and rounded once, with ``offset + weight``, whatever ``wide`` says.
    """

    config: NormConfig
    weight: int
    bias: int = 0


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of an attention (``tiles.attention_tiles``): address of int32 [tiles, 4].

    Each has table row (negative: none), first position, tokens (at most ``Ops.tile_rows // heads of a group``), first token
    of the step.
    """

    address: int
    count: int


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """The tokens of a step, with addresses on the device."""

    tokens: int  # T, padding included
    row_T: int  # int32 [T]: table row, -1 for padding
    position_T: int  # int32 [T]
    table: int  # int32 [R, M]: token ids of the rows; a virtual token is negative
    table_stride: int  # M
    slots: int  # int32 [R, L, P]: slots of the rows' pages
    row_stride: int  # L * P
    layer_stride: int  # P
    longest: int  # highest position of the step, and one: bounds the segments of an attention
    tiles: dict[int, Tiles] = field(default_factory=dict)  # by heads of a group
    number_T: int = 0  # int32 [T]: number of each token's deltas, 0 for none; address 0: no token has any
    changed: int = 0  # int32 [changes, 3]: first token, tokens (at most DELTA_TILE), number (``tiles.delta_tiles``)
    changes: int = 0  # number of these tiles


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms that deltas add to one product: address of int64 [numbers, roles, FIELDS], by number of a delta, then by role.

    ``A`` address of [RANK, W] and ``B`` of [ROWS, RANK], both in the model's type; RANK a multiple of RANK_UNIT, 0 without a
    low-rank term; COLUMN its first column of ``low`` (a multiple of RANK_UNIT; roles with equal A may share
    columns); SCALE the bits of a float64, the
    factor; SHIFT address of float32 [ROWS], a bias to add, or 0; FIRST the role's first output of the product, and
    ROWS their number: they
    are set for every number that a token may have, also where it changes nothing. LOW_BIAS address of float32 [RANK] and
    ACTIVATION (``ACTIVATIONS``) belong to bottlenecks. A record of zeros apart from FIRST and ROWS adds nothing.
    """

    address: int
    roles: int
    columns: int  # of ``low``: most of any number, a multiple of RANK_UNIT
    rows: int  # most ROWS of any role


@dataclass(frozen=True, slots=True)
class Choices:
    """Rows whose tokens are drawn by all parameters, by address, and scratch of their size.

    ints: int32 [rows, 8]: row of logits, table row, position, prompt's length, top k, first entry of the row's list, number
    of its entries, and 1 if no other token is allowed. floats: float64 [rows, 6]: temperature, logarithm of min p (-inf:
    none), top p, repetition, presence and frequency penalties. key: int64 [rows], as in ``Ops.draw``. A list has token ids,
    int32, each once, and what is added to their logits, float64: minus infinity for one that is forbidden.
    """

    rows: int
    ints: int
    floats: int
    key: int
    ids: int
    values: int
    listed: int  # most entries of a row
    penalised: bool  # whether any row has penalties
    table: int  # as in ``DeviceStep``
    table_stride: int
    scores: int  # scratch, float64 [rows, V]
    counts: int  # scratch, int32 [rows, 2, V], where rows have penalties


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Addresses for what log-probabilities are made of.

    numbers: float64 [rows, 2 + BEST]: the logarithm of the sum of all, the token's logit, the best logits. ranks: int32
    [rows, 1 + BEST]: the token's rank, the ids of the best. The best come first, and equal ones by their ids.
    """

    numbers: int
    ranks: int


@dataclass(frozen=True, slots=True)
class Slots:
    """The arena of a layout: slot s begins at ``address + s * slot_bytes``.

    KV: keys, then values, each [K, page, E]. Hidden states: [page, D]. Then padding.
    """

    address: int
    slot_bytes: int
    page: int  # tokens


@dataclass(frozen=True, slots=True)
class Finish:
    """Way in which a component's result joins the residual: ``hidden += multiplier * post(term) + side``, rounded once.

    ``side`` is a second sum, a parallel component's attention, added first: (side + term) + hidden, without post
    norm or factor of its own.
    """

    term: Sum
    side: Sum | None = None
    post: Norm | None = None
    multiplier: float = 1.0


class Ops(Protocol):
    """The operations (see the module). One instance for each device and model's type."""

    name: str  # part of the back end's numerics, with what decides bits: kernels, tiles, versions
    dtype: torch.dtype  # model
    tile_rows: int  # rows of an attention's tile: tokens times heads of a group

    def product_bytes(self, tokens: int, width: int, outputs: int) -> int:
        """Return the bytes that ``product`` needs at ``out`` for any step of at most ``tokens`` tokens."""

    def product(self, x: int, weight: Weight, out: int, tokens: int) -> Sum:
        """Multiply x, model [T, W], with a weight: float32 sums at ``out``, without biases and deltas.

        Sums run over ascending columns within stretches whose length is a constant of the weight's shape.
        """

    def embed(self, step: DeviceStep, weight: int, width: int, multiplier: float, out: int) -> None:
        """Write the rows of weight [V, D] that the step's tokens name to out [T, D], all model, times ``multiplier``.

        A virtual token's row is zero.
        """

    def fill(self, step: DeviceStep, virtual: int, width: int, out: int) -> None:
        """Overwrite rows of out, model [T, D], at virtual tokens of deltas.

        ``virtual``: int64 [numbers, 2], address of model [count, D], and count; a token of this number at a
        position below count
        takes the row of its position.
        """

    def normalise(self, x: int, norm: Norm, width: int, out: int, tokens: int) -> None:
        """Write the norm of x to out, both model [T, width]."""

    def finish(self, step: DeviceStep, hidden: int, width: int, how: Finish, norm: Norm | None = None, out: int = 0) -> None:
        """Add a component's result to hidden, model [T, D], in place; with ``norm`` write the norm of the sum to out, too.

        The bits equal those of ``normalise`` afterwards.
        """

    def heads(
        self, step: DeviceStep, qkv: Sum, config: AttentionConfig, norms: Sequence[Norm], rotary: tuple[int, int], q:
        int, kv: Slots,
        layer: int, virtual: int = 0,
    ) -> None:  # fmt: skip
        """Turn sums [Z, T, (H + 2K) * E] into queries q, model [T, H * E], and write keys and values to their slots.

        Queries and keys are normed where ``config.qk_norm`` says so (``norms``: of q, of k; else empty), then
        rotated; the first
        ``config.rope.dim or E`` elements turn. ``rotary``: addresses of cosine and sine, float32 [positions,
        half of those]. The slots of
        token t are ``slots[row_T[t], layer, position_T[t] // page]``. ``virtual``: as in ``fill``, rows of keys,
        then values [2 * K * E],
        which replace keys and values of virtual tokens; neither normed nor rotated.
        """

    def attend_bytes(self, tiles: int, longest: int, config: AttentionConfig) -> int:
        """Return the bytes of scratch that ``attend`` needs for this many tiles and positions.

        Raises BackendError for an attention that is not supported.
        """

    def attend(
        self, step: DeviceStep, q: int, config: AttentionConfig, kv: Slots, layer: int, out: int, scratch: int
    ) -> None:
        """Attend to positions 0 (or of the window) .. own position of each token: q and out are model [T, H * E].

        Scores times ``config.scale``, capped by ``config.softcap``. Keys are read in blocks of a constant size,
        in segments of a constant size,
        counted from position 0; so a token's bits are the same in prefill and decode.
        """

    def activate(self, step: DeviceStep, inner: Sum, activation: str, gated: bool, out: int) -> None:
        """Write act(gate) * up of sums [Z, T, 2I], or act(up) of [Z, T, I], to out, model [T, I]."""

    def shrink(self, step: DeviceStep, x: int, width: int, terms: Terms, low: int) -> None:
        """Multiply rows with deltas by their As: low, model [T, columns], is act(x @ A^T + low bias) at each
        role's columns."""

    def expand(self, step: DeviceStep, low: int, terms: Terms, outputs: int, delta: int) -> None:
        """Write scale * (low @ B^T) + shift to delta, float32 [T, Q], for all rows with a number; -0.0 where
        nothing is added.

        A bottleneck's scale covers what its B and its shift (the bias of ``up``) give: give the shift times the scale.
        """

    def adapt(self, step: DeviceStep, term: Sum, hidden: int, reads: int, x: int, wide: int) -> None:
        """Write a component's result as float32 [T, D] to wide, and what bottlenecks read to x, model [T, D].

        ``reads``: int32 [numbers], a code of READS: the result, result plus hidden, or hidden (model [T, D]). x
        is written only for rows with a number.
        """

    def logits(self, step: DeviceStep, term: Sum, divisor: float, softcap: float, out: int) -> None:
        """Write the logits of a sum, divided, then capped, to out, float32 [T, V]. ``out`` may be the sum's
        address if it has one part."""

    def draw(self, logits: int, rows: int, vocabulary: int, key: int, temperature: int, token: int) -> None:
        """Draw a token for each row of logits, float32 [N, V], as the host's sampler does where only temperature counts.

        key: int64 [N], bits of ``noise_key``; temperature: float64 [N], 0 for the best one; token: int32 [N], NOT_FINITE if
        the chosen logit is not finite. Equal scores: the lowest id.
        """

    def choose(self, logits: int, vocabulary: int, choices: Choices, token: int) -> None:
        """Draw a token by all parameters for the rows of logits that ``choices`` names, to their places of token."""

    def logprobs(self, logits: int, vocabulary: int, rows: int, index: int, best: int, token: int, out: Logprobs) -> None:
        """Write what log-probabilities are made of, of ``rows`` rows of logits, int32 [rows] ``index``.

        Of the token at the row's place of ``token`` and of the ``best`` best ones, at most BEST.
        """

    def keep(self, table: int, table_stride: int, rows: int, drawn: int, token: int, standing: int) -> None:
        """Write the last token that counts of each row to the table, and how many count to standing, int32 [rows].

        drawn: int32 [rows, 4]: table row (-1: padding), the position of its first drawn token, the place of that in
        ``token``, and how many were drawn. They count up to the first that is not the draft which the table has at its
        position. Neither NOT_FINITE nor what lies beyond the table is written.
        """

    def gather(self, source: int, index: int, out: int, rows: int, width: int) -> None:
        """Copy rows: out[i] = source[index[i]], model [.., width]; index int32 [rows], where -1 copies nothing."""

    def scatter(self, source: int, index: int, out: int, rows: int, width: int) -> None:
        """Copy rows: out[index[i]] = source[i], likewise."""

    def put_hidden(self, step: DeviceStep, hidden: int, width: int, pages: Slots, column: int) -> None:
        """Write hidden, model [T, D], to the slots that layer ``column`` of the tables names; pages without a
        slot (NO_SLOT) are left out."""

    def take_hidden(self, step: DeviceStep, hidden: int, width: int, pages: Slots, column: int) -> None:
        """Read what ``put_hidden`` wrote."""

    def copy_slots(
        self, source: int, source_slots: int, target: int, target_slots: int, count: int, slot_bytes: int
    ) -> None:
        """Copy whole slots between ranges: target[target_slots[i]] = source[source_slots[i]].

        Slots are int32 [count] on the device; address 0 means 0, 1, .. count - 1. Serves export, import and
        moves; slots that are moved within a range do not
        overlap.
        """

    def edit(self, target: int, index: int, value: int, count: int) -> None:
        """Write value, int32 [count], to the int32 elements index, int64 [count], of a table. An index comes once only."""
