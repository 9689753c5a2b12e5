"""Native CPU back end: a whole run is one call into the compiled kernels, which have their own threads.

Owns the kernels' context, their scratch and the rotary tables. On one kind of processor (``numerics`` names the instruction
set) a row's results are bitwise the same alone, in any batch, in any chunking, and wherever its prompt ends. Inside a
component everything is float32 except the inputs of products; hidden states and KV are rounded to the model's type. A call
allocates nothing but small index arrays and releases the GIL once.

Shape legend: as in ``gpu/backend.py``; H half a head.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch

from ....policies.model.chain import HiddenLayout, KvLayout, PageLayout
from ...backend import HOST_ALIGNMENT, HOST_CHUNK, Batch, Packed, PackedPart
from ...errors import BackendError
from ...hidden_slots import HiddenSlots
from ...model.activations import embedding_multiplier
from ...model.config import (
    MAX_HEAD_DIM,
    AttentionConfig,
    ComponentConfig,
    ComponentSpec,
    EmbeddingConfig,
    HeadConfig,
    MlpConfig,
    NormConfig,
    ParallelConfig,
    RopeConfig,
    StitchConfig,
    attention_of,
)
from ...model.config import MLP as SECOND
from ...model.rotary import rotary_table
from ...sampling.masks import TokenMasks
from ...sampling.pooling import host_norm, normed
from ...slots import SlotBytes
from ...tables import Tables
from ...weights.identity import packed_id
from .deltas import AttachedDeltas, NativeDelta, delta_bytes, groups, pack_delta
from .library import (
    ACTIVATIONS,
    ATTENTION,
    EMBEDDING,
    ERRORS,
    HALVES,
    HEAD,
    JOIN,
    KEEP,
    LAYER,
    MLP,
    NEIGHBOURS,
    RMS,
    ComponentRecord,
    library,
)
from .packing import DTYPES, NativePacked, pack, parts_of

SLOT_UNIT = 1024  # bytes
MAX_THREADS = 256
FIELDS = {  # field of a record for each role; norms have the name of their role
    "weight": "w0", "bias": "b0", "q": "w0", "k": "w1", "v": "w2", "o": "w_out", "gate": "w0", "up": "w1", "down": "w_out",
    "q_bias": "b0", "k_bias": "b1", "v_bias": "b2", "o_bias": "b_out",
    "gate_bias": "b0", "up_bias": "b1", "down_bias": "b_out",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NativeRun:
    """Consecutive components as records for the kernels, and the objects that their pointers must keep alive."""

    records: ctypes.Array[ComponentRecord]
    address: int
    count: int
    width: int
    vocabulary: int  # columns of a head, or of a stitch; else 0
    parts: tuple[NativePacked, ...]
    places: tuple[int, ...]  # each component's first record
    rope: tuple[torch.Tensor, ...]  # tables that the records point to
    deltas: dict[int, AttachedDeltas] = field(default_factory=dict)  # by number


class NativeBackend:
    """Native back end (see the module and ``gpu/backend.py``). ``instruction_set`` "": the processor's best."""

    def __init__(self, dtype: str, threads: int = 1, instruction_set: str = "") -> None:
        if dtype not in DTYPES:
            raise BackendError(f"dtype {dtype!r} is not supported by the native back end; choose {' or '.join(DTYPES)}")
        if not 1 <= threads <= MAX_THREADS:
            raise BackendError(f"threads is {threads}; give 1 to {MAX_THREADS}")
        self._lib = library()
        self._ctx: int | None = self._lib.bw_create(threads, dtype == "bfloat16", instruction_set.encode())
        if self._ctx is None:
            raise BackendError(
                f"no native kernels for instruction set {instruction_set or 'of any kind'!r} in {dtype} with {threads} "
                "threads here; choose another set, fewer threads or the torch back end"
            )
        self.close = weakref.finalize(self, self._lib.bw_destroy, self._ctx)
        self.name = "native"
        self.slot_unit = SLOT_UNIT
        self.chunk, self.alignment = HOST_CHUNK, HOST_ALIGNMENT
        self.numerics = f"native-{self._lib.bw_name(self._ctx).decode()}-{dtype}"
        self.dtype = DTYPES[dtype]
        self._dtype_name = dtype
        self._arenas: dict[KvLayout, torch.Tensor] = {}
        self._slots: dict[PageLayout, SlotBytes] = {}
        self._hidden: dict[HiddenLayout, HiddenSlots] = {}
        self._rope: dict[tuple[RopeConfig, int], tuple[torch.Tensor, torch.Tensor]] = {}  # keyed by head_dim, too
        self._tables: Tables | None = None
        self._max_logits = 0
        self._logits = torch.empty(0)
        self._masks: np.ndarray | None = None  # the last ones
        self._picked = np.empty((2, 0), dtype=np.int32)  # ids of allowed tokens, and their logits

    def slot_bytes(self, layout: PageLayout) -> int:
        return -(-layout.raw_bytes // self.slot_unit) * self.slot_unit

    def parts(self, spec: ComponentSpec) -> list[PackedPart]:
        if spec.delta is not None:
            name = packed_id(spec, "delta", f"delta {self.dtype}")
            return [PackedPart("delta", name, delta_bytes(spec, self.dtype), "delta", (1,), 1)]
        return parts_of(spec, self.dtype)

    def pack(self, part: PackedPart, raw: torch.Tensor, memory: torch.Tensor) -> None:
        pack(part, raw, memory, self.dtype)

    def assemble(self, spec: ComponentSpec, memory: Mapping[str, torch.Tensor]) -> Packed:
        return NativePacked(spec, memory, self.dtype)

    def pack_delta(
        self, spec: ComponentSpec, tensors: Mapping[str, torch.Tensor], memory: torch.Tensor
    ) -> Generator[int, None, NativeDelta]:
        return pack_delta(spec, tensors, memory, self.dtype)

    def reserve(self, tables: Tables, max_tokens: int, max_rows: int) -> None:
        tokens_RM, slots_RLP = tables.tokens, tables.slots
        self._max_logits = max(max_tokens, max_rows)
        code = self._lib.bw_tables(
            self._ctx,
            _address(tokens_RM),
            _address(slots_RLP),
            *tokens_RM.shape,
            *slots_RLP.shape[1:],
            self._max_logits,
        )
        if code or self._lib.bw_reserve(self._ctx, None, 0):
            raise BackendError(f"no memory for a step of {self._max_logits} tokens; lower sweep_tokens")
        self._tables = tables

    def settle(self) -> None:
        self._lib.bw_settle(self._ctx)

    def progress(self) -> int:
        return int(self._lib.bw_progress(self._ctx))

    def delay(self, every: int, microseconds: int) -> None:
        """Slow the kernels down, for tests.

        One in ``every`` points of a piece at which a thread could lose its core takes ``microseconds`` longer.
        """
        self._lib.bw_delay(self._ctx, every, microseconds)

    def add_arena(self, layout: PageLayout, memory: torch.Tensor) -> None:
        if layout.dtype != self._dtype_name:
            raise BackendError(f"KV of {layout.dtype} does not fit a back end of {self._dtype_name}; give both one type")
        self._slots[layout] = SlotBytes(memory, self.slot_bytes(layout))
        if isinstance(layout, HiddenLayout):
            self._hidden[layout] = HiddenSlots(memory, self.slot_bytes(layout), layout)
            return
        self._arenas[layout] = memory

    def export(self, layout: PageLayout, slots: Sequence[int], memory: torch.Tensor) -> None:
        self._slots[layout].read(slots, memory)

    def import_(self, layout: PageLayout, slots: Sequence[int], memory: torch.Tensor) -> None:
        self.settle()  # a late thread may still read the slots' former content
        self._slots[layout].write(slots, memory)

    def put_hidden(self, layout: HiddenLayout, column: int, batch: Batch) -> None:
        assert self._tables is not None, "reserve() comes before put_hidden()"
        self._hidden[layout].put(self._tables, column, batch)

    def take_hidden(self, layout: HiddenLayout, column: int, batch: Batch) -> None:
        assert self._tables is not None, "reserve() comes before take_hidden()"
        self._hidden[layout].take(self._tables, column, batch)

    def compose(self, parts: Sequence[Packed], kv_layer: int) -> NativeRun:
        if self._tables is None:
            raise BackendError("compose() before reserve(): the caller's order is wrong")
        packed = tuple(part for part in parts if isinstance(part, NativePacked) and part.dtype == self.dtype)
        if len(packed) != len(parts) or not packed:
            raise BackendError(f"a run needs components packed by a native back end of {self._dtype_name}")
        rope: list[torch.Tensor] = []
        records = (ComponentRecord * sum(1 + isinstance(part.spec.config, ParallelConfig) for part in packed))()
        following = iter(records)
        for part in packed:
            self._describe(part, following, kv_layer)
            if (attention := attention_of(part.spec.config)) is not None:
                rope += self._rope[attention.rope, attention.head_dim]
                kv_layer += 1
        widths = {part.spec.config.hidden for part in packed}
        if len(widths) > 1:
            raise BackendError(f"the components of a run have widths {sorted(widths)}; a run needs one width")
        address = ctypes.addressof(records)
        if self._lib.bw_reserve(self._ctx, address, len(records)):
            raise BackendError(f"no memory for a step of {self._max_logits} tokens; lower sweep_tokens")
        config = packed[0].spec.config
        vocabulary = _columns(config)
        if self._max_logits * vocabulary > self._logits.numel():
            self._logits = torch.empty(self._max_logits * vocabulary)
        sizes = (1 + isinstance(part.spec.config, ParallelConfig) for part in packed)
        places = tuple(accumulate(sizes, initial=0))[:-1]
        return NativeRun(records, address, len(records), widths.pop(), vocabulary, packed, places, tuple(rope))

    def attach(self, run: NativeRun, number: int, deltas: Mapping[int, NativeDelta]) -> None:
        if self._lib.bw_reserve_low(self._ctx, max((delta.panels for delta in deltas.values()), default=0)):
            raise BackendError(f"no memory for low-rank terms of {self._max_logits} tokens; lower sweep_tokens")
        if widest := max((delta.bottleneck for delta in deltas.values()), default=0):
            records = (ComponentRecord * run.count).from_buffer_copy(run.records)
            for record in records:
                record.adapted = widest if record.kind in (ATTENTION, MLP) else 0
            if self._lib.bw_reserve(self._ctx, records, run.count):
                raise BackendError(f"no memory for bottlenecks of {self._max_logits} tokens; lower sweep_tokens")
        run.deltas[number] = AttachedDeltas.of(run.count, ((run.places[i], delta) for i, delta in deltas.items()))

    def detach(self, run: NativeRun, number: int) -> None:
        self.settle()
        del run.deltas[number]

    def forward(self, run: NativeRun, batch: Batch) -> None:
        hidden_TD = batch.hidden_TD
        self._check(run, hidden_TD, is_head=False)
        row = _address(batch.row_N)
        start = _address(batch.start_N)
        count = _address(batch.count_N)
        changed = groups(batch.delta_N, batch.count_N, run.deltas)
        code = self._lib.bw_forward(
            self._ctx,
            run.address,
            run.count,
            row,
            start,
            count,
            len(batch.row_N),
            hidden_TD.data_ptr(),
            hidden_TD.shape[0],
            changed,
            len(changed) if changed is not None else 0,
        )
        if code:
            raise BackendError(f"{ERRORS[code]}: the plan is wrong")

    def logits(self, run: NativeRun, hidden_ND: torch.Tensor, delta_N: np.ndarray | None = None) -> torch.Tensor:
        self._check(run, hidden_ND, is_head=True)
        rows = hidden_ND.shape[0]
        changed = groups(delta_N, np.ones(rows, dtype=np.int32), run.deltas)
        how_many = len(changed) if changed is not None else 0
        code = self._lib.bw_logits(
            self._ctx, run.address, hidden_ND.data_ptr(), rows, self._logits.data_ptr(), changed, how_many
        )
        if code:
            raise BackendError(f"{ERRORS[code]}: the plan is wrong")
        return self._logits[: rows * run.vocabulary].view(rows, run.vocabulary)

    def stitch(self, run: NativeRun, hidden_TD: torch.Tensor, out_TE: torch.Tensor) -> None:
        out_TE.copy_(self.logits(run, hidden_TD))  # a product with a bias, like a head's, rounded to the model's type

    def states(self, run: NativeRun, hidden_ND: torch.Tensor) -> np.ndarray:
        (part,) = run.parts
        config = part.spec.config
        assert isinstance(config, HeadConfig), "states are a head's"
        roles = ("norm", "norm_bias")
        vectors = [part.memory[role].view(torch.float32)[: config.hidden] for role in roles if role in part.memory]
        return normed(hidden_ND, *host_norm(vectors, 0.0), config.norm)  # the offset was added when it was packed

    def argmax(self, logits_NV: torch.Tensor, masks: TokenMasks | None = None) -> np.ndarray:
        rows, vocabulary = logits_NV.shape
        if logits_NV.dtype != torch.float32 or not logits_NV.is_contiguous():
            raise BackendError(f"argmax needs contiguous float32 logits, not {logits_NV.dtype}: the caller is wrong")
        if rows > self._max_logits:
            raise BackendError(f"argmax of {rows} rows where {self._max_logits} were reserved: the caller is wrong")
        best_N = np.empty(rows, dtype=np.int32)
        bits, words, which = self._masks_of(masks, rows, vocabulary) if masks is not None else (None, 0, None)
        self._lib.bw_argmax(self._ctx, logits_NV.data_ptr(), rows, vocabulary, bits, words, which, best_N.ctypes.data)
        if logits_NV.data_ptr() != self._logits.data_ptr():
            self.settle()  # the caller's memory, which may be freed
        return best_N

    def _masks_of(self, masks: TokenMasks, rows: int, vocabulary: int) -> tuple[int, int, int]:
        bits_MW, which_N = masks.bits_MW, masks.which_N
        words = -(-vocabulary // 32)
        if (
            which_N.shape != (rows,)
            or bits_MW.shape[1] != words
            or bits_MW.dtype != np.uint32
            or not bits_MW.flags.c_contiguous
        ):
            raise BackendError(f"masks of shape {bits_MW.shape} do not fit {rows} rows of {vocabulary}: the caller is wrong")
        if bits_MW is not self._masks:
            self.settle()  # a late thread may still read the former ones
            self._masks = bits_MW
        return bits_MW.ctypes.data, words, _address(which_N)

    def allowed(self, logits_V: np.ndarray, mask_W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        vocabulary = logits_V.size
        if logits_V.dtype != np.float32 or not logits_V.flags.c_contiguous or mask_W.size * 32 < vocabulary:
            raise BackendError(
                f"a mask of {mask_W.size} words does not fit {vocabulary} float32 logits: the caller is wrong"
            )
        if vocabulary > self._picked.shape[1]:
            self._picked = np.empty((2, vocabulary), dtype=np.int32)
        id_V, some_V = self._picked[0], self._picked[1].view(np.float32)
        places = logits_V.ctypes.data, vocabulary, mask_W.ctypes.data, id_V.ctypes.data, some_V.ctypes.data
        count = int(self._lib.bw_allowed(self._ctx, *places))
        return id_V[:count], some_V[:count]

    def _check(self, run: NativeRun, hidden: torch.Tensor, is_head: bool) -> None:
        if bool(run.vocabulary) != is_head:
            raise BackendError("a head is computed by logits(), everything else by forward(): the caller is wrong")
        if hidden.dtype != self.dtype or hidden.shape[1] != run.width or not hidden.is_contiguous():
            raise BackendError(
                f"hidden states must be contiguous {self._dtype_name} of width {run.width}, not {hidden.dtype} of shape "
                f"{list(hidden.shape)}: the caller is wrong"
            )

    def _describe(self, part: NativePacked, records: Iterator[ComponentRecord], kv_layer: int) -> None:
        """Fill the next record.

        A component with two parts fills two: the result of attention is kept aside until the feed-forward part ends.
        """
        config = part.spec.config
        record = next(records)
        record.width, record.factor = config.hidden, 1.0
        match config:
            case EmbeddingConfig():
                record.kind, record.inner = EMBEDDING, config.vocabulary
                record.factor = embedding_multiplier(config, self.dtype)
            case HeadConfig():
                record.kind = HEAD
                record.inner = config.vocabulary
                record.factor = config.divisor
                record.softcap = config.softcap
                _describe_norm(config.norm, record)
            case StitchConfig():  # a head without a norm
                record.kind, record.inner = HEAD, config.out
            case MlpConfig():
                self._describe_mlp(config, record)
            case AttentionConfig():
                self._describe_attention(part, config, record, kv_layer)
            case ParallelConfig():
                self._describe_attention(part, config.attention, record, kv_layer)
                record.side = KEEP
                follower = next(records)
                follower.width, follower.side = config.hidden, JOIN
                self._describe_mlp(config.mlp, follower)
                _point(follower, {r.removeprefix(SECOND): a for r, a in part.addresses().items() if r.startswith(SECOND)})
        _point(record, {role: address for role, address in part.addresses().items() if not role.startswith(SECOND)})

    def _describe_attention(
        self, part: NativePacked, config: AttentionConfig, record: ComponentRecord, kv_layer: int
    ) -> None:
        layout, tables = part.spec.component.kv, self._tables
        assert tables is not None
        if layout is None or layout not in self._arenas:
            raise BackendError(f"no arena for KV layout {layout}; call add_arena() first")
        if config.head_dim % 2 or config.head_dim > MAX_HEAD_DIM or config.heads % config.kv_heads:
            raise BackendError(
                f"attention with {config.heads} heads, {config.kv_heads} KV heads of {config.head_dim} is not supported; "
                f"head_dim must be even and at most {MAX_HEAD_DIM}, heads a multiple of kv_heads"
            )
        layers, pages = tables.kv_layers, tables.slots.shape[2]  # the slots have one more layer, for hidden states
        if kv_layer >= layers or pages * layout.page_size < tables.tokens.shape[1]:
            raise BackendError(
                f"KV layer {kv_layer} with pages of {layout.page_size} tokens does not fit tables of {layers} layers and "
                f"{pages} pages; make the tables larger"
            )
        record.kind = ATTENTION
        record.scale = config.scale
        record.softcap = config.softcap
        record.factor = config.multiplier
        record.qk_whole = config.qk_norm == "whole"
        _describe_norm(config.norm, record)
        record.heads = config.heads
        record.kv_heads = config.kv_heads
        record.head_dim = config.head_dim
        record.window = config.window or 0
        record.kv_layer = kv_layer
        record.page_size = layout.page_size
        record.slot_bytes, record.arena = self.slot_bytes(layout), self._arenas[layout].data_ptr()
        cos_MH, sin_MH = self._rotary(config.rope, config.head_dim, tables.tokens.shape[1])
        record.cos = cos_MH.data_ptr()
        record.sin = sin_MH.data_ptr()
        record.rotary = 2 * cos_MH.shape[1]
        record.rope = NEIGHBOURS if config.rope.interleaved else HALVES

    def _describe_mlp(self, config: MlpConfig, record: ComponentRecord) -> None:
        record.kind = MLP
        record.inner = config.intermediate
        record.factor = config.multiplier
        record.activation, record.gated = ACTIVATIONS[config.activation], config.gated
        _describe_norm(config.norm, record)

    def _rotary(self, rope: RopeConfig, head_dim: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rotary tables for at least ``length`` positions.

        Runs keep the tables that they were composed with.
        """
        key = rope, head_dim
        if key not in self._rope or len(self._rope[key][0]) < length:
            cos_MH, sin_MH = rotary_table(rope, head_dim, torch.arange(length), torch.float32)
            self._rope[key] = cos_MH.contiguous(), sin_MH.contiguous()
        return self._rope[key]


def _columns(config: ComponentConfig) -> int:
    """Return the columns that ``logits`` computes; 0 for what ``forward`` computes."""
    if isinstance(config, StitchConfig):
        return config.out
    return config.vocabulary if isinstance(config, HeadConfig) else 0


def _describe_norm(norm: NormConfig, record: ComponentRecord) -> None:
    record.eps = norm.eps
    record.norm_kind = LAYER if norm.kind == "layer" else RMS


def _point(record: ComponentRecord, addresses: dict[str, int]) -> None:
    for role, address in addresses.items():
        setattr(record, FIELDS.get(role, role), address)


def _address(array: np.ndarray) -> int:
    if array.dtype != np.int32 or not array.flags.c_contiguous:
        raise BackendError(f"index arrays must be C-contiguous int32, not {array.dtype}: the caller is wrong")
    return array.ctypes.data
