"""What the front needs of each served model besides its weights: tokenizer, chat template, sampling defaults, end tokens.

Loaded from the model's folders once, on a thread, when first asked for. An adapter's own files count, and its base's for
what it lacks; equal files share one object, equal tokenizers one tokenizer. Knows from the gateway port which models exist.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import weakref
from collections.abc import Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...actors.gateway.port import GatewayPort, ModelInfo
from ...gpu.errors import CheckpointError
from ...gpu.model.config import GenerationDefaults
from ...gpu.regular_file import read_regular
from ...gpu.weights.adapter import trained_on
from ...gpu.weights.checkpoint_files import (
    ADDED_TOKENS,
    LONGEST_TEXT,
    OF_FRONT,
    SPECIAL_MAP,
    TOKENIZER,
    TOKENIZER_CONFIG,
    CheckpointFiles,
)
from ...gpu.weights.generation import read_generation
from ...policies.cluster.adapter_base import AmbiguousBase, WholeModel, choose_base, named_base
from ...policies.nearest import suggestion
from ...policies.plan.sampling import SamplingParams
from ...zoo.source import is_variant, open_source
from ..checks import shown
from ..errors import ApiError
from ..text.chat_template import ChatTemplate
from ..text.tokenizer import TextCodec
from ..text.tokenizer_build import OF_SETTINGS

log = logging.getLogger(__name__)
_Key = tuple[tuple[str, ...], int]  # of a model: its folders, and when it was added
_LONG = 4096  # characters of a turn of the loop that are tokenized on it, in less time than a thread's hand-over is worth
_EACH = 64  # characters whose time a text takes besides its own


Identity = tuple[tuple[tuple[str, bytes], ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class ServedModel:
    """``defaults``: the sampling of a request that says nothing. It is ``generation_config.json`` of the checkpoint, where
    ``do_sample`` false means temperature 0, else no change to the logits. ``generation``: what else that file says.
    """

    codec: TextCodec
    template: ChatTemplate | None
    defaults: SamplingParams
    generation: GenerationDefaults
    stop_tokens: list[int]
    vocabulary: int  # ids below this exist


def identity(files: CheckpointFiles) -> Identity:
    """Return what is equal for equal files: of each folder that has any, their names and hashes. Raises OSError."""
    found = []
    for folder in files.folders:
        there = {name: read_regular(folder / name, LONGEST_TEXT) for name in OF_FRONT if (folder / name).is_file()}
        found.append(tuple((name, hashlib.blake2b(raw, digest_size=16).digest()) for name, raw in there.items()))
    return tuple(filter(None, found))


def load_model(files: CheckpointFiles, codecs: MutableMapping[bytes, TextCodec] | None = None) -> ServedModel:
    """Load what a front needs of a model. ``codecs``: those in use, by what they are made of. Raises CheckpointError."""
    checkpoint = open_source(files.folders[-1])
    codec = _codec(files, {} if codecs is None else codecs)
    generation = read_generation(files, checkpoint.config)
    defaults = SamplingParams(
        temperature=0.0 if generation.do_sample is False else generation.temperature,
        top_p=generation.top_p,
        top_k=generation.top_k,
        min_p=generation.min_p,
        repetition_penalty=generation.repetition_penalty,
    )
    template = ChatTemplate.load(files, codec.named)
    vocabulary = checkpoint.config.vocabulary
    notes = [*codec.notes, *_beyond(files, codec, vocabulary)]
    stops = list(generation.eos_token_ids)
    end = codec.id_of(codec.named.get("eos_token", ""))
    if end is not None and end not in stops and end < vocabulary:
        if stops:
            notes.append(
                f"the tokenizer's eos_token {codec.named['eos_token']!r} ({end}) ends an answer besides the eos_token_id "
                f"{stops} of the configuration; name it there, or send ignore_eos"
            )
        stops.append(end)
    if generation.unapplied:
        notes.append(
            f"generation_config.json: {', '.join(generation.unapplied)} would change answers and is not applied; "
            "docs/serving.md lists what is"
        )
    if codec.missing:  # last: of a folder that is refused nothing else is said
        log.warning("%s", codec.missing)
    for note in notes:
        log.warning("%s: %s", files.folders[0], note)
    return ServedModel(
        codec=codec,
        template=template,
        defaults=defaults,
        generation=generation,
        stop_tokens=stops,
        vocabulary=vocabulary,
    )


def _codec(files: CheckpointFiles, codecs: MutableMapping[bytes, TextCodec]) -> TextCodec:
    """Return the tokenizer of a model: one that is in use where it is made of the same."""
    of_tokenizer, digest = files.of_tokenizer(), hashlib.blake2b(digest_size=16)
    if not (file := of_tokenizer.find(TOKENIZER)).is_file():
        return TextCodec.load(files)
    digest.update(read_regular(file, LONGEST_TEXT))
    settings = of_tokenizer.merged(TOKENIZER_CONFIG)
    made_of = {key: value for key, value in settings.items() if key in OF_SETTINGS or key.endswith("_token")}
    others = [of_tokenizer.merged(SPECIAL_MAP), of_tokenizer.merged(ADDED_TOKENS)]
    config = files.merged("config.json")
    classes = [config.get("model_type"), config.get("tokenizer_class")]
    digest.update(json.dumps([made_of, *others, *classes], sort_keys=True).encode())
    key = digest.digest()
    codec = codecs.get(key)
    if codec is None:
        codec = codecs[key] = TextCodec.load(files)
    return codec


def _beyond(files: CheckpointFiles, codec: TextCodec, vocabulary: int) -> list[str]:
    """Return a note on tokens that the model has no parameters for.

    Raises CheckpointError for an adapter's, which was trained with them, unless the token only fills batches.
    """
    beyond = codec.beyond(vocabulary)
    if not beyond:
        return []
    own = len(files.folders) > 1 and files.of_tokenizer().find(TOKENIZER).parent != files.folders[-1]
    for id, text in beyond:
        if own and text != codec.named.get("pad_token"):
            raise CheckpointError(
                f"{files.folders[0]}: the adapter's token {text!r} has the id {id}, but the vocabulary of its base ends at "
                f"{vocabulary - 1}; merge the adapter into a base with a larger vocabulary and serve that"
            )
    id, text = beyond[0]
    return [
        f"the tokenizer's token {text!r} has the id {id}, but the vocabulary ends at {vocabulary - 1}; "
        "a prompt with that token is refused"
    ]


class Catalog:
    """Models by id. One for each application; ``close`` ends its threads. ``longest``: characters of a text to tokenize."""

    def __init__(self, port: GatewayPort, longest: int) -> None:
        self._port, self._longest = port, longest
        self._loaded: dict[_Key, asyncio.Task[ServedModel]] = {}
        self._known: weakref.WeakValueDictionary[Identity, ServedModel] = weakref.WeakValueDictionary()
        self._codecs: weakref.WeakValueDictionary[bytes, TextCodec] = weakref.WeakValueDictionary()
        self._tried: ServedModel | None = None  # kept for whoever serves it next
        self._loading = asyncio.Lock()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tokenize")
        self._spent = 0  # characters that were tokenized in this turn of the loop

    def models(self) -> list[ModelInfo]:
        """Return what is served; raise a 503 while that is nothing."""
        if not (models := self._port.models()):
            raise ApiError(503, "no model is loaded yet; try again soon", retry_after=1.0)
        return models

    def info(self, model: str | None) -> ModelInfo:
        """Return the model of that id, or the default one where a request has none; raise a 404 with the nearest id, or a
        400 where the default is not served: another model never stands in for it."""
        models = self.models()
        wanted = self._port.default_model() if model is None else model
        for info in models:
            if info.id == wanted:
                return info
        ids = [info.id for info in models]
        if model is None:
            gone = f"the default, {shown(wanted)}, is not served" if wanted else "there is no default"
            remedy = f"name one of {', '.join(ids[:20])}, add {shown(wanted)} again, or start with default_model=NAME"
            raise ApiError(400, f"the request names no model and {gone}; {remedy}", param="model", code="no_default_model")
        message = f"the model {shown(model)} does not exist; {suggestion(model, ids, repr)}"
        raise ApiError(404, message, param="model", code="model_not_found")

    async def load(self, info: ModelInfo) -> ServedModel:
        """Raises CheckpointError."""
        return await asyncio.shield(self._task(info))  # a client that leaves must not end what others wait for

    def begin(self) -> None:
        """Load all that is served before anybody asks. What cannot be loaded is said to whoever asks for it."""
        for info in self._port.models():
            self._task(info)

    def forget(self) -> None:
        """Nobody asks here any more."""
        self._loaded.clear()
        self._tried = None

    def _task(self, info: ModelInfo) -> asyncio.Task[ServedModel]:
        key = info.folders, info.created
        task = self._loaded.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            served = {(one.folders, one.created) for one in self._port.models()}
            for gone in self._loaded.keys() - served:
                del self._loaded[gone]
            task = asyncio.create_task(self._load(info.folders))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, if nobody waits for it
            self._loaded[key] = task
        return task

    async def try_folder(self, folder: Path) -> None:
        """Load what the front would need to serve a whole model from a folder. Raises CheckpointError."""
        self._tried = await self._load((str(folder),))

    async def try_adapter(self, folder: Path, base: str) -> None:
        """Load what the front would need to serve an adapter over the model ``base``; "": the one that it was trained on.

        A base that is not served is for the controller to refuse. Raises CheckpointError.
        """
        found = await asyncio.to_thread(self._base, folder, base)
        if found:
            self._tried = await self._load((str(folder), found))

    def _base(self, folder: Path, name: str) -> str:
        """Return the folder of the whole model that an adapter is for; "": that is not to be told from here."""
        infos = [info for info in self._port.models() if not info.adapter and not is_variant(Path(info.checkpoint))]
        wholes = [WholeModel(info.id, info.checkpoint) for info in infos]
        try:
            found = named_base(name, wholes) if name else choose_base(trained_on(folder), wholes)
        except AmbiguousBase:  # the controller knows more of them, and refuses with their names
            return ""
        return found.checkpoint if found is not None else ""

    async def encode(self, model: ServedModel, text: str, *, special: bool) -> list[int]:
        """Raises a 400 for a text that is longer than any memory should be asked for."""
        if len(text) > self._longest:
            message = f"the prompt has {len(text)} characters, more than the limit of {self._longest}; shorten it"
            raise ApiError(400, message, param="prompt", code="context_length_exceeded")
        if model.codec.missing:
            raise ApiError(400, model.codec.missing, param="prompt")
        return await self._with_text(model, model.codec.encode, text, special=special)

    async def offsets(self, model: ServedModel, text: str, *, special: bool) -> list[int]:
        """Return where the tokens of a text begin, which ``encode`` has taken."""
        return await self._with_text(model, model.codec.offsets, text, special=special)

    async def _with_text(self, model: ServedModel, use: Callable[..., list[int]], text: str, *, special: bool) -> list[int]:
        loop = asyncio.get_running_loop()
        if self._spent == 0:
            loop.call_soon(self._begin_turn)
        self._spent += len(text) + _EACH
        if model.codec.quick and self._spent < _LONG:
            return use(text, special=special)
        return await loop.run_in_executor(self._threads, partial(use, text, special=special))

    def _begin_turn(self) -> None:
        self._spent = 0

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _load(self, folders: tuple[str, ...]) -> ServedModel:
        """One at a time, and not on the threads that tokenize: prompts do not wait for it."""
        files = CheckpointFiles(*map(Path, folders))
        async with self._loading:
            try:
                key = await asyncio.to_thread(identity, files)
            except (OSError, CheckpointError):
                key = ()  # the model's reader says why
            found = self._known.get(key)
            if found is None:
                found = await asyncio.to_thread(load_model, files, self._codecs)
                if key:
                    self._known[key] = found
            return found
