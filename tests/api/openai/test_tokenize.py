"""``/tokenize`` and ``/detokenize`` equal the checkpoint's tokenizer in transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.api.fake_port import make_folder
from blockwright.tests.claims import claim

DEMO = Path(__file__).parents[3] / "examples" / "demo-checkpoint"
TEXTS = ["", "once upon", "the <s>odd</s> one", "grüße 🙂\n", " 12 + 34 ="]
TOOL = {"type": "function", "function": {"name": "time"}}
CHAT = [{"role": "user", "content": "hi there"}]
SPM_WORDS = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{b:02X}>" for b in range(256)),
    "▁",
    "a",
    "b",
    "▁a",
    "n",
    "d",
    "an",
    "▁an",
    "and",
]


def sentencepiece_folder(folder: Path) -> Path:
    """As Llama 2: U+2581 for spaces, bytes as a fallback, BOS added."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from tokenizers.processors import TemplateProcessing

    make_folder(folder)
    merges = [("▁", "a"), ("a", "n"), ("▁", "an"), ("an", "d")]
    vocabulary = {word: i for i, word in enumerate(SPM_WORDS)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in SPM_WORDS[:3]])
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", pair=None, special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(params=["bytes", "pieces", "demo"])
def tokenizer_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made: dict[str, Callable[[], Path]] = {
        "bytes": lambda: make_folder(tmp_path / "bytes"),
        "pieces": lambda: sentencepiece_folder(tmp_path / "pieces"),
        "demo": lambda: DEMO,
    }
    return made[request.param]()


async def post(client: Any, path: str, **fields: Any) -> Any:
    answer = await client.post(path, json=fields)
    assert answer.status == 200, await answer.text()
    return await answer.json()


@claim("`/tokenize` and `/detokenize` give token ids and text", of="http-api")
async def test_texts_and_back(serve: Any, tokenizer_folder: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(tokenizer_folder)
    client, _ = await serve(folder=tokenizer_folder)
    for text in TEXTS:
        for special in (True, False):
            body = await post(client, "/tokenize", prompt=text, add_special_tokens=special, return_token_strs=True)
            ids = reference(text, add_special_tokens=special)["input_ids"]
            assert body["tokens"] == ids
            assert (body["count"], body["max_model_len"]) == (len(ids), 64)
            assert body["token_strs"] == reference.convert_ids_to_tokens(ids)
            back = await post(client, "/detokenize", tokens=ids)
            assert back["prompt"] == reference.decode(ids)
    plain = await post(client, "/tokenize", prompt=TEXTS[1])
    assert plain["tokens"] == reference(TEXTS[1])["input_ids"]
    assert plain["token_strs"] is None


@claim("`/tokenize` and `/detokenize` give token ids and text", of="http-api")
async def test_conversations(serve: Any, tokenizer_folder: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(tokenizer_folder)
    client, _ = await serve(folder=tokenizer_folder)
    for begin in (True, False):
        body = await post(client, "/tokenize", messages=CHAT, add_generation_prompt=begin)
        text = reference.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=begin)
        assert body["tokens"] == reference(text, add_special_tokens=False)["input_ids"]
        twice = await post(client, "/tokenize", messages=CHAT, add_generation_prompt=begin, add_special_tokens=True)
        assert twice["tokens"] == reference(text, add_special_tokens=True)["input_ids"]


@pytest.mark.parametrize(
    ("path", "fields", "status", "says"),
    [
        ("/tokenize", {}, 400, "either prompt or messages"),
        ("/tokenize", {"prompt": "a", "messages": CHAT}, 400, "either prompt or messages"),
        ("/tokenize", {"prompt": ["a"]}, 400, "give a string"),
        ("/tokenize", {"prompt": "a", "model": "none"}, 404, "does not exist"),
        ("/tokenize", {"messages": CHAT, "chat_template": "x"}, 400, "chat_template ('x') is not supported"),
        ("/tokenize", {"prompt": "a", "adapter_id": "dates"}, 400, "send model = 'dates'"),
        ("/tokenize", {"content": "a"}, 400, "it is called prompt here"),
        ("/tokenize", {"prompt": "a", "tools": [TOOL]}, 400, "tools are for messages"),
        ("/tokenize", {"prompt": "a", "addSpecialTokens": False}, 400, "did you mean add_special_tokens?"),
        ("/detokenize", {"token_ids": [5]}, 400, "it is called tokens here"),
        ("/detokenize", {}, 400, "tokens is missing"),
        ("/detokenize", {"tokens": [269]}, 400, "token id 269 is not in the vocabulary"),
        ("/detokenize", {"tokens": "a"}, 400, "list of token ids"),
    ],
)
async def test_refusals(serve: Any, path: str, fields: Any, status: int, says: str) -> None:
    client, _ = await serve()
    answer = await client.post(path, json=fields)
    assert answer.status == status
    assert says in (await answer.json())["error"]["message"]


async def test_without_a_tokenizer(serve: Any, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "bare")
    (folder / "tokenizer.json").unlink()
    client, _ = await serve(folder=folder)
    for path, fields in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [5]})):
        answer = await client.post(path, json=fields)
        assert answer.status == 400
        assert "has no tokenizer.json" in (await answer.json())["error"]["message"]


async def test_unknown_fields_are_listed(serve: Any) -> None:
    client, _ = await serve()
    answer = await client.post("/tokenize", json={"prompt": "a", "wibble": 1})
    assert answer.headers["x-ignored-fields"] == "wibble"
