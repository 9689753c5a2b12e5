"""Checkpoints whose files say what no file should: whatever stands there, it opens or is refused in one short sentence."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from blockwright.gpu.model.fields import Fields
from blockwright.gpu.weights.checkpoint import Checkpoint, CheckpointError
from blockwright.tests.checkpoints import PRESETS
from blockwright.tests.claims import claim
from blockwright.tests.parts import some

MakeCheckpoint = Callable[..., Path]
DEEP = "[" * 100_000 + "]" * 100_000
LONG = 700  # characters of a sentence beside the paths that it names
ODD: list[str] = [  # JSON, as some parsers take it
    "null", "true", "false", "-1", "0", "1", "1.5", "-0.0", "1e999", "-1e999", "NaN", "1e308", "5e-324",
    "9" * 19, "9" * 400, "9" * 5000, "-" + "9" * 400, "2147483647", "2147483648", '""', '"x"', json.dumps("a\nb\x1b[2J"),
    r'"\ud800"', json.dumps("x" * 10_000), "[]", "[1, 2]", "[[[]]]", "[null]", '["full_attention"]', "{}", '{"a": {}}',
    '{"rope_type": 7}', '{"rope_type": "llama3", "factor": 1e999}', '{"rope_type": "linear", "factor": NaN}',
    '{"rope_type": "longrope", "short_factor": [1e999], "long_factor": []}', "[1e999]",
]  # fmt: skip
FAMILIES = list({family: preset for preset, (family, _) in PRESETS.items()}.values())


def text(fields: dict[str, Any], key: str, value: str) -> str:
    """A JSON object with ``key`` set to what ``value`` says, whether json.dumps could write that or not."""
    others = {name: other for name, other in fields.items() if name != key}
    return json.dumps({**others, key: None})[: -len("null}")] + value + "}"


def keys_read(folder: Path) -> list[str]:
    """What is looked at when it is opened, of objects inside objects too."""
    read: set[str] = set()

    class Noting(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            read.add(key)
            return super().get(key, default)

    with pytest.MonkeyPatch.context() as patch:
        make = Fields.__init__
        patch.setattr(Fields, "__init__", lambda self, source, values: make(self, source, Noting(values)))
        Checkpoint.open(folder)
    return sorted(read)


def opened(folder: Path) -> str:
    """Open it, as a server does: "" or the sentence."""
    try:
        checkpoint = Checkpoint.open(folder)
    except CheckpointError as error:
        sentence = str(error)
        assert sentence.isprintable(), sentence
        assert len(sentence.replace(str(folder), "")) < LONG, sentence[:1000]
        return sentence
    assert len(checkpoint) < 100
    return ""


@claim("A checkpoint with wrong values in any key of its configuration is refused in one sentence", of="checkpoints")
@pytest.mark.parametrize(
    ("architecture", "quarter"), some(product(FAMILIES, range(4)), *zip(FAMILIES[::3], range(4), strict=True))
)
def test_any_value_of_any_key_of_the_configuration(
    checkpoint: MakeCheckpoint, tmp_path: Path, architecture: str, quarter: int
) -> None:
    """Every fourth value, which are others for the next family."""
    folder = Path(shutil.copytree(checkpoint(architecture), tmp_path / "copy"))
    fields = json.loads((folder / "config.json").read_text())
    for key in keys_read(folder):
        for value in ODD[(FAMILIES.index(architecture) + quarter) % 4 :: 4]:
            (folder / "config.json").write_text(text(fields, key, value))
            opened(folder)


@pytest.mark.parametrize("architecture", ["llama3", "phi3-longrope", "gpt-neox"])
def test_any_value_of_any_key_of_the_rotary_embedding(checkpoint: MakeCheckpoint, tmp_path: Path, architecture: str) -> None:
    folder = Path(shutil.copytree(checkpoint(architecture), tmp_path / "copy"))
    fields = json.loads((folder / "config.json").read_text())
    rope = fields["rope_parameters"]
    for key in {
        *rope,
        "type",
        "rope_theta",
        "partial_rotary_factor",
        "attention_factor",
        "original_max_position_embeddings",
    }:
        for value in ODD:
            (folder / "config.json").write_text(text(fields, "rope_parameters", text(rope, key, value)))
            opened(folder)


@pytest.mark.parametrize("where", ["rope_parameters", "rope_scaling", ""])
def test_the_error_of_a_theta_shows_it_wherever_it_is_written(
    checkpoint: MakeCheckpoint, tmp_path: Path, where: str
) -> None:
    folder = Path(shutil.copytree(checkpoint("llama"), tmp_path / "copy"))
    fields = json.loads((folder / "config.json").read_text())
    fields.pop("rope_parameters", None)
    fields |= {where: {"rope_type": "default", "rope_theta": -7.0}} if where else {"rope_theta": -7.0}
    (folder / "config.json").write_text(json.dumps(fields))
    assert "rope_theta is -7.0, not a positive number" in opened(folder)


def test_any_value_of_the_generation_defaults(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint("llama"), tmp_path / "copy"))
    path = folder / "generation_config.json"
    for key in ("temperature", "top_p", "top_k", "repetition_penalty", "do_sample", "eos_token_id"):
        for value in ODD:
            path.write_text(f'{{"{key}": {value}}}')
            opened(folder)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("config.json", "nested too deep"),
        ("generation_config.json", "nested too deep"),
        ("model.safetensors.index.json", "nested too deep"),
    ],
)
def test_what_is_nested_too_deep(checkpoint: MakeCheckpoint, tmp_path: Path, name: str, words: str) -> None:
    folder = Path(shutil.copytree(checkpoint("llama"), tmp_path / "copy"))
    if name.endswith("index.json"):
        (folder / "model.safetensors").unlink()
    for content in (DEEP, f'{{"rope_scaling": {DEEP}}}'):
        (folder / name).write_text(content)
        assert words in opened(folder)


@pytest.mark.parametrize("layers", [10**18, 10**7, 10**3])
def test_more_layers_than_there_are_tensors(checkpoint: MakeCheckpoint, tmp_path: Path, layers: int) -> None:
    """Before anything is made for each of them."""
    folder = Path(shutil.copytree(checkpoint("llama"), tmp_path / "copy"))
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(text(fields, "num_hidden_layers", str(layers)))
    sentence = opened(folder)
    assert "num_hidden_layers" in sentence
    assert str(layers) in sentence


def header(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the header of the folder's tensors."""
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    entries = json.loads(raw[8 : 8 + length])
    replaced = change(entries)
    write(path, replaced if isinstance(replaced, str) else json.dumps(entries), raw[8 + length :])


def write(path: Path, text: str, tensors: bytes) -> None:
    encoded = text.encode("utf-8", "surrogatepass")
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + tensors)


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    "entry",
    [
        DEEP, *ODD,
        '{"dtype": "F32", "shape": [64], "data_offsets": [0, 1e999]}',
        '{"dtype": "F32", "shape": [64], "data_offsets": [NaN, 256]}',
        '{"dtype": "F32", "shape": [64], "data_offsets": [0.5, 256.5]}',
        '{"dtype": "F32", "shape": [64], "data_offsets": ["0", "256"]}',
        '{"dtype": "F32", "shape": [64], "data_offsets": [-256, 0]}',
        '{"dtype": "F32", "shape": [64], "data_offsets": [0, 256, 512]}',
        f'{{"dtype": "F32", "shape": [64], "data_offsets": [{"9" * 400}, {"9" * 399}8]}}',
        '{"dtype": "F32", "shape": [1e999], "data_offsets": [0, 256]}',
        '{"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}',
        '{"dtype": "F32", "shape": 64, "data_offsets": [0, 256]}',
        '{"dtype": "F32", "shape": [-8, -8], "data_offsets": [0, 256]}',
        '{"dtype": "F32", "shape": [' + "9223372036854775807," * 20_000 + '0], "data_offsets": [0, 0]}',
        '{"dtype": 32, "shape": [64], "data_offsets": [0, 256]}',
        '{"dtype": ["F32"], "shape": [64], "data_offsets": [0, 256]}',
        '{"dtype": "F8_\\u001b[2J", "shape": [64], "data_offsets": [0, 64]}',
    ],
)  # fmt: skip
def test_any_entry_of_a_tensor_is_refused(checkpoint: MakeCheckpoint, tmp_path: Path, entry: str) -> None:
    folder = Path(shutil.copytree(checkpoint("llama"), tmp_path / "copy"))
    header(folder, lambda entries: entries.pop(NORM) and json.dumps(entries)[:-1] + f', "{NORM}": {entry}}}')
    assert opened(folder)


@pytest.mark.parametrize("whole", ["[]", "7", "null", '"x"', DEEP, "{", "", "\ud800", "9" * 5000])
def test_a_header_that_is_no_object(checkpoint: MakeCheckpoint, tmp_path: Path, whole: str) -> None:
    folder = Path(shutil.copytree(checkpoint("llama"), tmp_path / "copy"))
    header(folder, lambda entries: whole)
    assert opened(folder)


def test_a_tensor_that_is_named_twice(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    """Which one counts would depend on the reader."""
    folder = Path(shutil.copytree(checkpoint("llama"), tmp_path / "copy"))
    header(folder, lambda entries: json.dumps(entries)[:-1] + f', "{NORM}": {json.dumps(entries[NORM])}}}')
    assert "twice" in opened(folder)


def test_names_are_shown_short_and_printable(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint("llama"), tmp_path / "copy"))
    bad = {"dtype": "F32", "shape": [3], "data_offsets": [0, 1]}
    header(folder, lambda entries: entries.update({"a\nb\x1b[2J" + "x" * 10_000: bad}))
    assert "a\\nb" in opened(folder)
    for shard in ("a\nb", "x" * 10_000, "\0", "", ".", "..", "/etc/passwd", 7, None, ["a"], "\ud800"):
        (folder / "model.safetensors").unlink(missing_ok=True)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a\nb" + "y" * 10_000: shard}}))
        assert opened(folder)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "a\nb", "\ud800", "", "~nobody-of-this-name/x", "owner/" + "n" * 5000])
def test_sources_that_are_no_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < LONG


def test_a_configuration_without_end(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint("llama"), tmp_path / "copy"))
    with (folder / "config.json").open("r+b") as file:
        file.truncate(1 << 40)  # a hole: takes no space
    assert "too long" in opened(folder)


@claim("A checkpoint with wrong values in any key of its configuration is refused in one sentence", of="checkpoints")
@pytest.mark.parametrize("seed", range(20))
def test_bytes_changed_at_random(checkpoint: MakeCheckpoint, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    source = checkpoint("gpt-neox" if seed % 2 else "phi3-longrope")
    folder = Path(shutil.copytree(source, tmp_path / "copy"))
    for name in ("config.json", "model.safetensors"):
        path = folder / name
        whole = path.read_bytes()
        limit = len(whole) if name == "config.json" else 8 + struct.unpack("<Q", whole[:8])[0]
        for _ in range(30):
            spoiled = bytearray(whole)
            for _ in range(chance.randrange(1, 5)):
                spoiled[chance.randrange(limit)] = chance.choice(b'0123456789-.eE"[]{},:ntf \x00\xff')
            path.write_bytes(spoiled)
            opened(folder)
        path.write_bytes(whole)
