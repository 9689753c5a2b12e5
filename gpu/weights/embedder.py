"""Embedders and rerankers, as sentence-transformers saves them: pooling, prompts, similarity, and the tokens of a verdict.

modules.json lists what follows the model; each module has its configuration in a folder, or, in a folder that was flattened
(``checkpoint_files.py``), in the list. Anything that would change a vector and is not done here is refused by name. Standard
library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...policies.plan.pooling import LAST, MODES
from ..errors import CheckpointError
from ..model.config import HeadConfig, ModelConfig
from ..model.fields import Fields, named, shown
from ..model.parts import Part
from .checkpoint_files import CONFIG, EMBEDDER_CONFIG, MODULES, CheckpointFiles, read_modules

# the two names of a width, and the flags of earlier releases, in the order in which results follow each other
WIDTHS = ("embedding_dimension", "word_embedding_dimension")
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": LAST,
}
COSINE, DOT = "cosine", "dot"
SIMILARITIES = (COSINE, DOT, "euclidean", "manhattan")
MOST_PROMPTS, LONGEST_PROMPT = 256, 1 << 16  # of a model; characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedder:
    """The way from the states of a text's tokens to its vector.

    ``prompts`` are put before texts, by name; ``default_prompt`` is the one of requests that name none. ``similarity``: of
    two vectors.
    """

    modes: tuple[str, ...] = (LAST,)
    normalize: bool = True
    width: int  # numbers of a vector
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    similarity: str = COSINE

    def prompt(self, *names: str) -> str:
        """Return the first prompt of these names that there is, else the default one."""
        return next(
            (self.prompts[name] for name in names if name in self.prompts), self.prompts.get(self.default_prompt, "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranker:
    """A model that judges a document by the logits of two tokens; with ``no`` below 0, of one.

    ``yes`` and ``no`` are token ids, or texts of single tokens. ``instruction``: what is judged, if a request says nothing.
    """

    yes: int | str
    no: int | str = -1
    instruction: str = ""
    sigmoid: bool = True  # the score is a probability; else it is the difference of the logits


Pooled = Embedder | Reranker


def read_pooled(files: CheckpointFiles, config: ModelConfig) -> Pooled | None:
    """Return what the files of a model say of its vectors or verdicts; None: it only generates.

    The first folder that says something counts. Raises CheckpointError.
    """
    for folder in files.folders:
        if (folder / MODULES).is_file():
            return _read_modules(files, folder, config)
        own = Fields(folder / CONFIG, files.merged(CONFIG)) if (folder / CONFIG).is_file() else None
        if own is not None and own.has("classifier_from_token"):
            return _from_tokens(own)
    return None


def pooled_over(files: CheckpointFiles, config: ModelConfig, *, embeds: bool) -> Pooled | None:
    """Return the same for a model whose parts are known: an adapter over its base, or an application of a zoo.

    ``embeds``: it has no logits. Raises CheckpointError.
    """
    found = read_pooled(files, config)
    if embeds and found is None:
        return plain_embedder(config)
    if isinstance(found, Reranker if embeds else Embedder):
        what = "an embedder, but its base generates" if not embeds else "no embedder, but its base is one"
        raise CheckpointError(f"{files.folders[0] / MODULES}: it is {what}; serve the base that it was trained on")
    return found


def plain_embedder(config: ModelConfig) -> Embedder:
    """Return the embedder of a model without a head whose files say nothing: the last token's state, of length 1."""
    return Embedder(width=config.hidden)


def without_head(chain: list[Part]) -> list[Part]:
    """Return an embedder's chain: the last component keeps its norm, and has no logits."""
    *body, (head, roles) = chain
    assert isinstance(head, HeadConfig), "a chain ends with its head"
    kept = {role: source for role, source in roles.items() if role != "weight"}
    return [*body, (replace(head, vocabulary=0, divisor=1.0, softcap=0.0), kept)]


def _from_tokens(own: Fields) -> Reranker:
    """Return the reranker of a config.json with ``classifier_from_token``: the texts of no and yes."""
    given = own.values["classifier_from_token"]
    if not isinstance(given, list) or len(given) != 2 or not all(isinstance(one, str) and one for one in given):
        raise own.wrong("classifier_from_token", 'a list of two tokens, such as ["no", "yes"]')
    no, yes = given
    return Reranker(yes=yes, no=no)


def _read_modules(files: CheckpointFiles, folder: Path, config: ModelConfig) -> Pooled:
    modules = read_modules(folder)
    kinds = [module.kind for module in modules]
    where = folder / MODULES
    if not kinds or kinds[0] != "Transformer" or modules[0].path not in ("", "."):
        first = shown(kinds[0]) if kinds else "nothing"
        raise CheckpointError(
            f"{where} begins with {first}; it must be a Transformer in the folder itself; save the model again with "
            "sentence-transformers"
        )
    _check_transformer(modules[0].config)
    done = kinds[1:]
    settings = Fields(folder / EMBEDDER_CONFIG, files.merged(EMBEDDER_CONFIG))
    if done == ["LogitScore"]:
        return _reranker(modules[1].config, settings, config)
    known = ("Pooling", "Normalize")
    if other := next((kind for kind in done if kind not in known), None):
        raise CheckpointError(
            f"{where}: the module {named(other)} is not supported (there are: Transformer, Pooling, Normalize, LogitScore); "
            "use a model without it"
        )
    if done not in (["Pooling"], ["Pooling", "Normalize"]):
        raise CheckpointError(f"{where} lists {', '.join(kinds)}; there must be one Pooling, and Normalize only behind it")
    modes = _modes(modules[1].config, config)
    return _with_settings(Embedder(modes=modes, normalize=len(done) == 2, width=len(modes) * config.hidden), settings)


def _check_transformer(fields: Fields) -> None:
    if fields.flag("do_lower_case"):
        raise CheckpointError(f"{fields.source}: do_lower_case is true, which is not supported; send texts in lower case")


def _modes(fields: Fields, config: ModelConfig) -> tuple[str, ...]:
    """Return the modes of a Pooling module. Raises CheckpointError."""
    for key in WIDTHS:
        if fields.has(key) and fields.integer(key) != config.hidden:
            raise fields.wrong(key, f"{config.hidden}, the hidden_size of the model")
    if not fields.flag("include_prompt", True):
        raise CheckpointError(
            f"{fields.source}: include_prompt is false, which is not supported; use a model that pools its prompt, too"
        )
    if fields.has("pooling_mode"):
        given = fields.values["pooling_mode"]
        found = [given] if isinstance(given, str) else given
    else:
        found = [mode for key, mode in FLAGS.items() if fields.flag(key)] or ["mean"]
    if not isinstance(found, list) or not found or not all(isinstance(mode, str) and mode in MODES for mode in found):
        raise fields.wrong("pooling_mode", f"one of {', '.join(MODES)}, or a list of them")
    if len(set(found)) != len(found):
        raise fields.wrong("pooling_mode", "a list without repetitions")
    return tuple(found)


def _with_settings(made: Embedder, fields: Fields) -> Embedder:
    """Return an embedder with its prompts and its similarity."""
    prompts = _prompts(fields)
    default = fields.text("default_prompt_name")
    if default and default not in prompts:
        raise fields.wrong(
            "default_prompt_name", f"one of the prompts ({', '.join(map(named, prompts)) or 'there are none'})"
        )
    similarity = fields.text("similarity_fn_name", COSINE)
    if similarity not in SIMILARITIES:
        raise fields.wrong("similarity_fn_name", f"one of {', '.join(SIMILARITIES)}")
    return replace(made, prompts=prompts, default_prompt=default, similarity=similarity)


def _prompts(fields: Fields) -> dict[str, str]:
    given: Any = fields.values.get("prompts") or {}
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise fields.wrong("prompts", "an object of texts")
    if len(given) > MOST_PROMPTS or max(map(len, given.values()), default=0) > LONGEST_PROMPT:
        raise fields.wrong("prompts", f"at most {MOST_PROMPTS} texts of at most {LONGEST_PROMPT} characters")
    return dict(given)


def _reranker(fields: Fields, settings: Fields, config: ModelConfig) -> Reranker:
    yes, no = fields.integer("true_token_id", least=0), fields.integer("false_token_id", -1, least=0)
    for key, token in (("true_token_id", yes), ("false_token_id", no)):
        if token >= config.vocabulary:
            raise fields.wrong(key, f"a token id below {config.vocabulary}")
    activation = settings.text("activation_fn").rpartition(".")[2] or "Sigmoid"
    if activation not in ("Sigmoid", "Identity"):
        raise settings.wrong("activation_fn", "Sigmoid or Identity")
    prompts = _prompts(settings)
    default = settings.text("default_prompt_name")
    if default and default not in prompts:
        raise settings.wrong("default_prompt_name", f"one of the prompts ({', '.join(map(named, prompts)) or 'none'})")
    return Reranker(yes=yes, no=no, instruction=prompts.get(default, ""), sigmoid=activation == "Sigmoid")
