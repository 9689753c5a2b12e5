"""Texts and chats become the ids that transformers makes of them with the same folder."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from tokenizers.processors import TemplateProcessing

from blockwright.api.errors import ApiError
from blockwright.api.text.chat_template import ChatTemplate, Rendering
from blockwright.api.text.tokenizer import TextCodec
from blockwright.gpu.weights.checkpoint import CheckpointError
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles
from blockwright.tests.checkpoints import write_tokenizer

WHOLE = Rendering(begin=True, proceed=False, variables={}, longest=1000)
CHAT = [
    {"role": "system", "content": "be kind <b> & 'so' on"},
    {"role": "user", "content": "grüße 🙂\n"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "  and?"},
]
TEMPLATE = """{%- set ns = namespace(n=0) -%}
{{ bos_token }}
{% for message in messages %}
    {% if loop.first and message.role == 'system' %}
[SYS]{{ message.content | tojson }}{{ {'a': [1, 'é']} | tojson(indent=2) }}
        {% continue %}
    {% endif %}
    {% set ns.n = ns.n + 1 %}
{% generation %}<{{ message['role'] }} {{ ns.n }}>{{ message.content.strip() }}{{ eos_token }}{% endgeneration %}
{% endfor %}
{% if add_generation_prompt and not tools %}<assistant>
{% endif %}"""


def folder_with(folder: Path, **config: Any) -> Path:
    write_tokenizer(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


def oracle(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("config", [{}, {"add_bos_token": True}, {"add_bos_token": True, "add_eos_token": True}])
@pytest.mark.parametrize("processor", [False, True])
def test_texts(tmp_path: Path, config: dict[str, bool], processor: bool) -> None:
    folder = folder_with(tmp_path, **config)
    if processor:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.post_processor = TemplateProcessing(single="<s> $A", pair=None, special_tokens=[("<s>", 1)])
        tokenizer.enable_truncation(2)
        tokenizer.save(str(folder / "tokenizer.json"))
    codec, reference = TextCodec.load(CheckpointFiles(folder)), oracle(folder)
    for text in ("", "the end 🙂", "<s>odd</s> the"):
        for special in (True, False):
            assert codec.encode(text, special=special) == reference.encode(text, add_special_tokens=special)


def test_a_long_text_leaves_the_interpreter_to_others(tmp_path: Path) -> None:
    codec, text = TextCodec.load(CheckpointFiles(folder_with(tmp_path))), "the in on " * 60_000

    def turns() -> int:
        """Of this thread while another one encodes."""
        ended, count = threading.Event(), 0

        def encode() -> None:
            codec.encode(text, special=False)
            ended.set()

        thread = threading.Thread(target=encode)
        thread.start()
        while not ended.wait(0.001):
            count += 1
        thread.join()
        return count

    assert any(turns() > 10 for _ in range(20))  # with the lock held all along: one or two; a busy machine may give few


def test_a_text_that_the_tokenizer_gives_up_on(tmp_path: Path) -> None:
    """The package panics at an expression that takes too many steps."""
    folder = folder_with(tmp_path)
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pre_tokenizer": pattern}))
    codec = TextCodec.load(CheckpointFiles(folder))
    for use in (codec.encode, codec.offsets):
        with pytest.raises(ApiError, match="the tokenizer gives up on this text"):
            use("a" * 40 + "x", special=False)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"},
        {"type": "Replace", "pattern": {"Regex": "a{2,}{2,}$"}, "content": "b"},
        {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 1000},
    ],
)
def test_a_slow_decoder_is_refused(tmp_path: Path, part: dict[str, Any]) -> None:
    """It would run on the event loop for every token."""
    folder = folder_with(tmp_path)
    file = folder / "tokenizer.json"
    decoder = {"type": "Sequence", "decoders": [part]}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"decoder": decoder}))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json has a decoder that repeats a group"):
        TextCodec.load(CheckpointFiles(folder))


@pytest.mark.parametrize("where", ["config", "file", "list"])
def test_chats(tmp_path: Path, where: str) -> None:
    folder = folder_with(tmp_path, chat_template="{{ raise_exception('not this one') }}")
    if where == "file":
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    else:
        named = [{"name": "default", "template": TEMPLATE}, {"name": "rag", "template": "x"}]
        folder_with(tmp_path, chat_template=TEMPLATE if where == "config" else named)
    codec = TextCodec.load(CheckpointFiles(folder))
    template = ChatTemplate.load(CheckpointFiles(folder), codec.named)
    assert template is not None
    text = template.render(CHAT, WHOLE)
    reference = oracle(folder)
    assert text == reference.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    ids = reference.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert codec.encode(text, special=False) == ids


@pytest.mark.parametrize("template", [TEMPLATE, "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"])
@pytest.mark.parametrize("text", ["  and then", "so ", "a\n", "x"])
def test_a_last_message_that_is_continued(tmp_path: Path, template: str, text: str) -> None:
    folder = folder_with(tmp_path, chat_template=template)
    codec, chat = TextCodec.load(CheckpointFiles(folder)), [*CHAT, {"role": "assistant", "content": text}]
    want = oracle(folder).apply_chat_template(chat, tokenize=False, continue_final_message=True)
    assert ChatTemplate(template, codec.named).render(chat, replace(WHOLE, begin=False, proceed=True)) == want
    with pytest.raises(ApiError, match="does not print the last message"):
        ChatTemplate("nothing", codec.named).render(chat, replace(WHOLE, begin=False, proceed=True))


def test_the_date_of_today() -> None:
    assert ChatTemplate("{{ strftime_now('%d') }}", {}).render(CHAT, WHOLE).isdigit()


def test_templates_cannot_change_what_they_are_given() -> None:
    with pytest.raises(ApiError, match="refuses these messages"):
        ChatTemplate("{{ messages.append(1) }}", {}).render(list(CHAT), WHOLE)


def test_an_end_token_in_the_vocabulary_is_hidden_even_if_the_file_does_not_mark_it(tmp_path: Path) -> None:
    Tokenizer(models.WordLevel({"a": 0, "[END]": 1}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": {"content": "[END]"}}')
    codec = TextCodec.load(CheckpointFiles(tmp_path))
    assert codec.special == {1}
    assert codec.decode([0, 1, 0]) == "a a"
    assert [codec.token_bytes(i) for i in (0, 1, 2)] == [b"a", b"[END]", b""]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("tokenizer.json", "{}", "cannot be loaded"),
        ("tokenizer_config.json", "[]", "holds a JSON list, not an object"),
        ("tokenizer_config.json", "{", "is not valid JSON"),
    ],
)
def test_broken_files(tmp_path: Path, name: str, text: str, says: str) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=says) as caught:
        TextCodec.load(CheckpointFiles(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_without_a_tokenizer_ids_have_no_text(tmp_path: Path) -> None:
    codec = TextCodec.load(CheckpointFiles(tmp_path))
    assert "has no tokenizer.json, so prompts are token ids" in codec.missing
    assert codec.decode([3, 7]) == ""
    assert codec.token_bytes(3) == b""
    detokenizer = codec.detokenizer([5])
    assert [detokenizer.push([3]), detokenizer.push([4]), detokenizer.flush()] == ["", "", ""]
