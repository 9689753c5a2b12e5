"""Small files of a checkpoint that a gateway needs: an adapter's own, and its base's for the missing ones.

Reads texts and JSON objects. Does not know their meaning, except which of them describe a whole tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..model.fields import LONGEST, LONGEST_CONFIG, Fields, parse, shown
from ..regular_file import read_regular

LONGEST_TEXT = 128 << 20  # bytes: tokenizers of large vocabularies have about thirty million
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
GENERATION = "generation_config.json"
CONFIG = "config.json"
SPECIAL_MAP, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"
OF_TOKENIZER = (TOKENIZER, TOKENIZER_CONFIG, SPECIAL_MAP, ADDED_TOKENS)
MODULES, EMBEDDER_CONFIG = "modules.json", "config_sentence_transformers.json"
MERGED = (TOKENIZER_CONFIG, SPECIAL_MAP, ADDED_TOKENS, GENERATION, EMBEDDER_CONFIG)  # merged key by key
# all that is read to serve a model's texts
OF_FRONT = (*OF_TOKENIZER, TEMPLATE, GENERATION, CONFIG, MODULES, EMBEDDER_CONFIG)
# files of the first module, which lies in the model's own folder: the name depends on the release
OF_TRANSFORMER = ("sentence_bert_config.json", "sentence_transformers_config.json")
MOST_MODULES = 64


def read_text(path: Path) -> str | None:
    """Return the text of a file, or None if it does not exist. Raises CheckpointError if it is not text."""
    try:
        return read_regular(path, LONGEST_TEXT).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except CheckpointError:
        raise
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); download the checkpoint again") from None


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Return a JSON object of a folder, empty if the file does not exist. Raises CheckpointError if it is not an object."""
    path = folder / name
    return Fields.read(path).values if path.exists() else {}


@dataclass(frozen=True, slots=True)
class Module:
    """One module of sentence-transformers: the name of its class, its folder within the model's, and its configuration."""

    kind: str
    path: str
    config: Fields


def read_modules(folder: Path) -> list[Module]:
    """Return the modules that a folder's modules.json lists, in its order. Raises CheckpointError."""
    path = folder / MODULES
    try:
        given = parse(read_regular(path, LONGEST_CONFIG))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); save the model again") from None
    if not isinstance(given, list) or len(given) > MOST_MODULES or not all(isinstance(one, dict) for one in given):
        raise CheckpointError(
            f"{path} holds {shown(given)}, not a list of at most {MOST_MODULES} modules; save the model again"
        )
    return [_module(folder, Fields(f"{path}: module {place}", one)) for place, one in enumerate(given)]


def _module(folder: Path, entry: Fields) -> Module:
    within = entry.text("path")
    if Path(within).is_absolute() or ".." in Path(within).parts:
        raise entry.wrong("path", "a folder within the model's")
    if entry.has("config"):
        config = entry.object("config") or Fields(entry.source, {})
    else:
        inside = folder / within
        names = OF_TRANSFORMER if inside == folder else (CONFIG,)
        found = next((inside / name for name in names if (inside / name).is_file()), None)
        config = Fields(entry.source, {}) if found is None else Fields.read(found)
    return Module(entry.text("type").rpartition(".")[2], within, config)


def flattened_modules(folder: Path) -> bytes:
    """Return modules.json with every module's configuration in it. Raises CheckpointError."""
    made = [{"type": one.kind, "path": one.path, "config": one.config.values} for one in read_modules(folder)]
    return json.dumps(made, indent=1, ensure_ascii=False).encode()


class CheckpointFiles:
    """The files of one model, from its folders: first the adapter's, if it is one, last the base's."""

    def __init__(self, *folders: Path) -> None:
        self.folders = folders

    def find(self, name: str) -> Path:
        """Return the first file of that name; if there is none, the path in the base's folder."""
        return next((path for folder in self.folders if (path := folder / name).is_file()), self.folders[-1] / name)

    def merged(self, name: str) -> dict[str, Any]:
        """Return one JSON object from all folders: a key that the first folder lacks comes from the next."""
        made: dict[str, Any] = {}
        for folder in self.folders:
            made = read_json(folder, name) | made
        return made

    def of_tokenizer(self) -> CheckpointFiles:
        """Return the files of the tokenizer.

        A folder with both tokenizer.json and its configuration holds a whole tokenizer, so nothing is mixed into it.
        """
        for i, folder in enumerate(self.folders):
            if all((folder / name).is_file() for name in (TOKENIZER, TOKENIZER_CONFIG)):
                return CheckpointFiles(*self.folders[: i + 1])
        return self

    def chat_template(self) -> tuple[Path, Any]:
        """Return the path and the chat template of the first folder that has one.

        The template is a text, a list of named ones, or None. A file of its own takes precedence over the tokenizer's
        configuration.
        """
        for folder in self.folders:
            if (text := read_text(folder / TEMPLATE)) is not None:
                return folder / TEMPLATE, text
            if (found := read_json(folder, TOKENIZER_CONFIG).get("chat_template")) is not None:
                return folder / TOKENIZER_CONFIG, found
        return self.folders[-1] / TEMPLATE, None

    def flattened(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the files of these names as they would be in one self-contained folder."""
        made: dict[str, bytes] = {}
        for name in names:
            files = self.of_tokenizer() if name in OF_TOKENIZER else self
            there = [folder / name for folder in files.folders if (folder / name).is_file()]
            if len(there) > 1 and name in MERGED:
                made[name] = json.dumps(files.merged(name), indent=1, ensure_ascii=False).encode()
            elif there and name == MODULES:
                made[name] = flattened_modules(there[0].parent)
            elif there:
                made[name] = read_regular(there[0], LONGEST)
        if len(self.folders) > 1 and (template := self.chat_template()[1]) is not None:
            made.pop(TEMPLATE, None)
            if isinstance(template, str):
                made[TEMPLATE] = template.encode()
        return made
