"""The catalog of served models: tokenizer, chat template, sampling defaults and end tokens of each (all but the weights).

A model is loaded from its folders once, on a thread, when it is first requested. An adapter's own files come first; its
base's files fill in what it lacks. Models with equal files share one object, and equal tokenizers are loaded once. The
gateway port says which models exist.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ...actors.gateway.fetched_files import FetchedFiles, FetchError, LocalModel
from ...actors.gateway.port import GatewayPort, ModelInfo
from ...gpu.errors import CheckpointError
from ...gpu.model.config import GenerationDefaults
from ...gpu.regular_file import read_regular
from ...gpu.weights.adapter import trained_on
from ...gpu.weights.checkpoint import Checkpoint
from ...gpu.weights.checkpoint_files import (
    ADDED_TOKENS,
    LONGEST_TEXT,
    MODULES,
    OF_FRONT,
    SPECIAL_MAP,
    TOKENIZER,
    TOKENIZER_CONFIG,
    CheckpointFiles,
    flattened_modules,
)
from ...gpu.weights.embedder import Pooled, Reranker, pooled_over
from ...gpu.weights.generation import read_generation
from ...policies.cluster.adapter_base import AmbiguousBase, WholeModel, choose_base, named_base
from ...policies.model.tiers import no_tier
from ...policies.nearest import suggestion
from ...policies.plan.sampling import SamplingParams
from ...zoo.source import holds_adapter, open_source
from ..checks import shown
from ..errors import ApiError
from ..text.chat_template import ChatTemplate
from ..text.tokenizer import TextCodec
from ..text.tokenizer_build import OF_SETTINGS
from ..text.turn.source import turn_of
from ..text.turn.template import TurnError, TurnTemplate

log = logging.getLogger(__name__)
_Key = tuple[tuple[str, ...], int]  # key of a model: its folders, and the time when it was added
_LONG = 4096  # characters of a turn of the loop that are tokenized on it, since a hand-over to a thread costs more
_EACH = 64  # characters whose time a text takes besides its own


Identity = tuple[tuple[tuple[str, bytes], ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class ServedModel:
    """A model as the front needs it.

    ``defaults``: the sampling of a request that sets nothing. They come from the checkpoint's ``generation_config.json``,
    where ``do_sample`` false means temperature 0; a default that the file lacks leaves the logits as they are.
    ``generation``: the other contents of that file.
    """

    codec: TextCodec
    template: ChatTemplate | None
    defaults: SamplingParams
    generation: GenerationDefaults
    stop_tokens: list[int]
    vocabulary: int  # number of token ids
    turn: TurnTemplate | TurnError | None  # an error: the checkpoint has one that cannot be used
    pooled: Pooled | None = None  # None: it only generates


def identity(files: CheckpointFiles) -> Identity:
    """Return a value that is equal for equal files: names and hashes of the files in each folder that has any.

    Raise OSError for a file that cannot be read.
    """
    found = []
    for folder in files.folders:
        there = {name: read_regular(folder / name, LONGEST_TEXT) for name in OF_FRONT if (folder / name).is_file()}
        if MODULES in there:  # with the configurations of all modules
            there[MODULES] = flattened_modules(folder)
        found.append(tuple((name, hashlib.blake2b(raw, digest_size=16).digest()) for name, raw in there.items()))
    return tuple(filter(None, found))


def load_model(
    files: CheckpointFiles,
    codecs: MutableMapping[bytes, TextCodec] | None = None,
    fetched: LocalModel | None = None,
) -> ServedModel:
    """Load the parts of a model that a front needs. ``codecs``: tokenizers in use, by a digest of their inputs.

    ``fetched``: what its parameters say where they are not here. Raise CheckpointError.
    """
    base = open_source(files.folders[-1]) if fetched is None else fetched
    codec = _codec(files, {} if codecs is None else codecs)
    generation = read_generation(files, base.config)
    defaults = SamplingParams(
        temperature=0.0 if generation.do_sample is False else generation.temperature,
        top_p=generation.top_p,
        top_k=generation.top_k,
        min_p=generation.min_p,
        repetition_penalty=generation.repetition_penalty,
    )
    template = ChatTemplate.load(files, codec.named)
    vocabulary = base.config.vocabulary
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
    if codec.missing:  # last, so that a folder that is refused logs nothing else
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
        turn=turn_of(files.merged(TOKENIZER_CONFIG).get("response_template"), template),
        pooled=_pooled(files, base, codec),
    )


def _pooled(files: CheckpointFiles, base: Checkpoint | LocalModel, codec: TextCodec) -> Pooled | None:
    """Return the vectors or verdicts that a model gives, the tokens of a verdict as ids. Raise CheckpointError."""
    found = pooled_over(files, base.config, embeds=base.embeds)
    if not isinstance(found, Reranker):
        return found
    ids = []
    for token in (found.yes, found.no):
        id = codec.id_of(token) if isinstance(token, str) else token
        if id is None or id >= base.config.vocabulary:
            raise CheckpointError(
                f"{files.folders[0]}: classifier_from_token names {shown(token)}, which is no token of the vocabulary"
            )
        ids.append(id)
    return replace(found, yes=ids[0], no=ids[1])


def _codec(files: CheckpointFiles, codecs: MutableMapping[bytes, TextCodec]) -> TextCodec:
    """Return the tokenizer of a model, sharing one in use that has the same inputs."""
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

    Raise CheckpointError if the token is an adapter's own, since the adapter was trained with it. A token that only pads
    batches is exempt.
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
    """The served models by id. One for each web application; ``close`` ends its threads.

    ``longest``: most characters of a text to tokenize. ``turns``: turn templates by model id, before the checkpoints' own.
    ``files``: fetches the models' files, which are on another machine; None: they are here.
    """

    def __init__(
        self,
        port: GatewayPort,
        longest: int,
        turns: Mapping[str, TurnTemplate] | None = None,
        files: FetchedFiles | None = None,
    ) -> None:
        self._port, self._longest = port, longest
        self._turns = turns or {}
        self._files = files
        self._loaded: dict[_Key, asyncio.Task[ServedModel]] = {}
        self._known: weakref.WeakValueDictionary[Identity, ServedModel] = weakref.WeakValueDictionary()
        self._codecs: weakref.WeakValueDictionary[bytes, TextCodec] = weakref.WeakValueDictionary()
        self._tried: ServedModel | None = None  # keeps the last tried model alive until it is served
        self._loading = asyncio.Lock()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tokenize")
        self._spent = 0  # characters that were tokenized in this turn of the loop

    def models(self) -> list[ModelInfo]:
        """Return the served models; raise a 503 while there are none."""
        if not (models := self._port.models()):
            raise ApiError(503, "no model is loaded yet; try again soon", retry_after=1.0)
        return models

    def info(self, model: str | None) -> ModelInfo:
        """Return the model with that id, or the default one if the request names none.

        Raise a 404 with the nearest id, or a 400 if the default is not served: another model never stands in for it.
        """
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
        advice = no_tier(model, [info.id for info in models if info.family]) or suggestion(model, ids, repr)
        message = f"the model {shown(model)} does not exist; {advice}"
        raise ApiError(404, message, param="model", code="model_not_found")

    async def load(self, info: ModelInfo) -> ServedModel:
        """Return a served model, loading it if necessary. Raise CheckpointError if it cannot be loaded."""
        # a client that disconnects must not cancel a load that others wait for
        return await asyncio.shield(self._task(info))

    def turn(self, info: ModelInfo, served: ServedModel) -> TurnTemplate | TurnError | None:
        """Return the turn template of a model, an error for one that cannot be used, or None."""
        return self._turns.get(info.id) or self._turns.get(info.family) or served.turn

    def begin(self) -> None:
        """Start loading all served models before the first request. Errors are reported to requests that name the model."""
        for info in self._port.models():
            self._task(info)

    def forget(self) -> None:
        """Drop all loaded models, because this process answers no more requests."""
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
            # marks the exception as retrieved if no request waits for it
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._loaded[key] = task
        return task

    async def try_folder(self, folder: Path) -> None:
        """Load the front's parts of a whole model from a folder, as a trial before it is served. Raise CheckpointError."""
        self._tried = await self._load((str(folder),))

    async def try_adapter(self, folder: Path, base: str) -> None:
        """Load the front's parts of an adapter over the model ``base``; "": the base that it was trained on.

        A base that is not served is left to the controller, which refuses it. Raise CheckpointError.
        """
        found = await asyncio.to_thread(self._base, folder, base)
        if found:
            self._tried = await self._load((str(folder), found))

    def _base(self, folder: Path, name: str) -> str:
        """Return the folder of the whole model that an adapter is for; "": it cannot be determined here."""
        infos = [
            info for info in self._port.models() if not (info.adapter or info.starts or holds_adapter(Path(info.checkpoint)))
        ]
        wholes = [WholeModel(info.id, info.checkpoint) for info in infos]
        try:
            found = named_base(name, wholes) if name else choose_base(trained_on(folder), wholes)
        except AmbiguousBase:  # the controller knows more models, and refuses with their names
            return ""
        return found.checkpoint if found is not None else ""

    async def encode(self, model: ServedModel, text: str, *, special: bool, name: str = "prompt") -> list[int]:
        """Return the tokens of a text; raise a 400 for a text above the length limit, which bounds memory.

        ``name``: the field that has the text.
        """
        if len(text) > self._longest:
            message = f"the {name} has {len(text)} characters, more than the limit of {self._longest}; shorten it"
            raise ApiError(400, message, param=name, code="context_length_exceeded")
        if model.codec.missing:
            raise ApiError(400, model.codec.missing, param=name)
        return await self._with_text(model, model.codec.encode, text, special=special)

    async def offsets(self, model: ServedModel, text: str, *, special: bool) -> list[int]:
        """Return the character offsets at which the tokens of a text begin. ``encode`` has accepted the text before."""
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
        """Load a model. Loads run one at a time, and not on the tokenizer threads, so that prompts do not wait for them."""
        async with self._loading:
            fetched = await self._fetched(folders)
            files = CheckpointFiles(*map(Path, folders if fetched is None else fetched.folders))
            try:
                key = await asyncio.to_thread(identity, files)
            except (OSError, CheckpointError):
                key = ()  # ``load_model`` reports the reason
            found = self._known.get(key)
            if found is None:
                found = await asyncio.to_thread(load_model, files, self._codecs, fetched)
                if key:
                    self._known[key] = found
            return found

    async def _fetched(self, folders: tuple[str, ...]) -> LocalModel | None:
        """Return a model whose files were fetched, or None if they are here. Raise ApiError, CheckpointError."""
        if self._files is None:
            return None
        try:
            return await self._files.model(folders)
        except FetchError as error:
            if error.later:
                raise ApiError(503, str(error), retry_after=1.0) from None
            raise CheckpointError(str(error)) from None
