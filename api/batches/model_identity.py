"""The identity of each served model: a hash of everything that determines its answers, independent of its name.

The hash covers the components of its chain (configuration, every tensor, an adapter's delta), the number format of its
computation, the longest sequence, the defaults of requests, and the tokenizer files, including an adapter's own. It does not
load torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from ...actors.changes_file import ChangesFile
from ...actors.checkpoints import OpenedCheckpoints, hash_applications, open_checkpoints
from ...actors.further_applications import open_further
from ...actors.settings.settings import Settings
from ...actors.sizing import serving_dtype
from ...policies.model.tier_choice import auto_id, starting_tier
from ...policies.model.tiers import layers_of

TEXT_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)


def model_identities(settings: Settings) -> dict[str, str]:
    """Return 32 hexadecimal digits for each application, the default one first.

    This reads every tensor, which takes seconds for each gigabyte. Raise CheckpointError and SettingsError like a server's
    start.
    """
    opened, default = _opened(settings)
    dtype = serving_dtype(settings.worker, {name: checkpoint.config for name, checkpoint in opened.checkpoints.items()})
    found = {}
    for application in hash_applications(opened, settings):
        checkpoint = opened.checkpoints[application.name]
        digest = hashlib.blake2b(digest_size=16)
        for component in application.components:
            digest.update(component.id)
        defaults = opened.defaults.get(application.name, "")
        settled = [dtype, application.max_length, dataclasses.asdict(checkpoint.generation), defaults]
        digest.update(json.dumps(settled, sort_keys=True).encode())
        for folder in dict.fromkeys((checkpoint.source, checkpoint.path)):
            for name in TEXT_FILES:
                digest.update(f"\0{name}\0".encode() + _content(folder / name))
        found[application.name] = digest.hexdigest()
    found |= _choices(found, opened, settings)
    first = {default: found.pop(default)} if default in found else {}
    return first | found


def _choices(found: Mapping[str, str], opened: OpenedCheckpoints, settings: Settings) -> dict[str, str]:
    """Return the identity of each ``NAME:auto``: all tiers of the family, and the rule that chooses among them."""
    made = {}
    for family in dict.fromkeys(opened.families.values()):
        tiers = [tier for tier, top in opened.families.items() if top == family]
        if any(one not in found for one in (family, *tiers)):
            continue
        rules = opened.checkpoints[family].thresholds
        stored = {tier: rules[layers] for tier in tiers if (layers := layers_of(tier)) in rules}
        start = starting_tier(sorted(tiers, key=layers_of), stored)
        rule = settings.tiering.rule(family, stored.get(start))
        settled = [*(found[one] for one in (family, *tiers)), start, dataclasses.asdict(rule)]
        made[auto_id(family)] = hashlib.blake2b(json.dumps(settled, sort_keys=True).encode(), digest_size=16).hexdigest()
    return made


def _opened(settings: Settings) -> tuple[OpenedCheckpoints, str]:
    """Open what a server with these settings serves, its folder of adapters included; also return its default model."""
    opened, file = open_checkpoints(settings), ChangesFile.of(settings.models)
    if file is None:
        return opened, settings.models.default_model
    changes = file.read()
    opened, _ = open_further(settings, opened, changes)  # its start tells what is not served
    return opened, settings.models.default_model or changes.default


def _content(path: Path) -> bytes:
    """Return the hash of a file, or nothing if there is none."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()
