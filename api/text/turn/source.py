"""The source of a model's turn template: a file of the setting ``turns``, the checkpoint, or the ones we know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....actors.settings.errors import SettingsError
from ....gpu.errors import CheckpointError
from ....gpu.regular_file import read_plain
from ..chat_template import ChatTemplate
from .known_templates import known_template
from .template import TurnError, TurnTemplate, read_template

LONGEST_FILE = 1 << 20  # bytes


def read_turns(files: Mapping[str, str]) -> dict[str, TurnTemplate]:
    """Return the templates of files by model id. Raise SettingsError."""
    made = {}
    for name, file in files.items():
        where = f"turns.{name}: {file}"
        try:
            made[name] = read_template(json.loads(read_plain(Path(file).expanduser(), LONGEST_FILE)))
        except TurnError as error:
            raise SettingsError(f"{where} {error}") from None
        except (OSError, CheckpointError) as error:
            raise SettingsError(f"{where} cannot be read ({error}); name a JSON file") from None
        except (ValueError, RecursionError):
            raise SettingsError(f"{where} is no JSON; give a turn template") from None
    return made


def turn_of(own: Any, template: ChatTemplate | None) -> TurnTemplate | TurnError | None:
    """Return the template of a checkpoint. ``own``: what its tokenizer_config.json says."""
    if own is not None:
        try:
            return read_template(own)
        except TurnError as error:
            return error
    if template is None:
        return None
    texts = [one.source for one in (template.for_tools, template) if one is not None]
    known = next(filter(None, map(known_template, texts)), None)
    return read_template(known) if known is not None else None
