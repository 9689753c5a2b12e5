"""The commands that talk to a model: a conversation on a terminal, and the continuation of a prompt."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...policies.nearest import suggestion
from . import CommandError
from .connection import add_sampling, add_target, is_address, reached, sampling, target_of

if TYPE_CHECKING:
    from ..program.blocking import BlockingCall, BlockingSession
    from ..program.results import Answer

FENCE = '"""'
KINDS: dict[str, Callable[[str], Any]] = {
    "temperature": float, "top_p": float, "top_k": int, "max_tokens": int, "seed": int, "stop": str,
}  # fmt: skip
HELP = '''/model [ID]          switch to another model, or list them
/system [TEXT]       set the system message, or remove it
/set [NAME VALUE]    temperature, top_p, top_k, max_tokens, seed or stop;
                     without a value: the model's default
/reset               clear the conversation
/quit                end, as Ctrl-D
"""                  begins a text of several lines, which the next """ ends
Ctrl-C               clears the line, or stops the answer'''


def chat_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--message", metavar="TEXT", help="send this, print the answer and exit")
    parser.add_argument("--system", metavar="TEXT", help="the system message, before all others")
    add_sampling(parser)


def chat(arguments: argparse.Namespace) -> int:
    """Talk to a model: a conversation in the terminal, or a single --message.

    /help lists the commands. Ctrl-C clears the line or stops the answer, Ctrl-D
    ends the conversation.
    """
    target = target_of(arguments)
    if not is_address(target) and sys.stderr.isatty():
        print(f"loading {target} ...", file=sys.stderr)
    with reached(arguments) as session:
        name = arguments.model or next(iter(session.models()), "")
        if why := base_model(session, name):
            raise CommandError(why, 2)
        talk = Conversation(session, arguments.system, arguments.verbose, sampling(arguments))
        if arguments.message is not None:
            talk.say(arguments.message)
            return 0
        print(f"{name} at {session.url or target}; /help lists the commands", file=sys.stderr)
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 (editing and history of the lines that input() reads)
        return converse(talk, input)


def converse(talk: Conversation, read: Callable[[str], str]) -> int:
    """Run the conversation until ``/quit`` or the end of the input. The server's refusals are printed, and it goes on."""
    from ..program.results import RequestError

    while True:
        try:
            text = read_text(read)
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:  # clears the typed line
            print("\n(Ctrl-D or /quit ends)", file=sys.stderr)
            continue
        try:
            if text in ("/quit", "/bye", "/exit"):
                return 0
            elif text.startswith("/"):
                if said := talk.order(text):
                    print(said, file=sys.stderr)
            elif text:
                talk.say(text)
        except KeyboardInterrupt:
            print("\n(stopped)", file=sys.stderr)
        except RequestError as error:
            if error.status == 0:
                raise CommandError(error.message) from None
            print(f"blockwright: {error.message}", file=sys.stderr)


def read_text(read: Callable[[str], str]) -> str:
    """Return a line, or all lines between two fences."""
    line = read(">>> ").strip()
    if not line.startswith(FENCE):
        return line
    lines = [line.removeprefix(FENCE)]
    while not lines[-1].rstrip().endswith(FENCE):
        lines.append(read("... "))
    lines[-1] = lines[-1].rstrip().removesuffix(FENCE)
    return "\n".join(lines).strip()


def base_model(session: BlockingSession, model: str) -> str:
    """Return a sentence with the reason a model cannot chat, or an empty text if it can. Raise RequestError."""
    from ..program.results import RequestError

    try:
        session.post("/tokenize", {"model": model, "messages": [{"role": "user", "content": "a"}]})
    except RequestError as error:
        if error.code == "no_chat_template":
            remedy = f"use 'blockwright complete --model {model} --prompt TEXT'"
            return f"{model} has no chat template: it is a base model, which continues text; {remedy}"
        if error.code != "template_error":  # a template that refuses this message may accept others
            raise
    return ""


class Conversation:
    """A conversation. ``model`` of ``options``: the model's id; without it the server's default answers."""

    def __init__(self, session: BlockingSession, system: str | None, verbose: bool, options: dict[str, Any]) -> None:
        self._session, self._verbose = session, verbose
        self.options = dict(options)  # fields of the requests
        self.system = system or ""
        self.messages: list[dict[str, str]] = []  # all except the system message

    def say(self, text: str) -> None:
        """Print the answer to ``text``. A refused or interrupted one leaves the conversation unchanged."""
        asked = [*self.messages, {"role": "user", "content": text}]
        first = [{"role": "system", "content": self.system}] if self.system else []
        answer = stream(self._session.stream_chat([*first, *asked], **self.options), self._verbose)
        self.messages = [*asked, {"role": "assistant", "content": answer}]

    def order(self, line: str) -> str:
        """Run a line that begins with / and return the reply, or an empty text. Raise RequestError."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        match name:
            case "/help" | "/?":
                return HELP
            case "/reset" | "/clear":
                self.messages = []
                return "the conversation is cleared"
            case "/system":
                self.system = rest
                return "the system message is set" if rest else "there is no system message now"
            case "/model":
                return self._choose(rest)
            case "/set":
                return self._set(*rest.split(maxsplit=1))
        known = ["/help", "/model", "/system", "/set", "/reset", "/quit"]
        return f"there is no {name}; {suggestion(name, known)}"

    def _choose(self, name: str) -> str:
        models = self._session.models()
        if not name:
            now = self.options.get("model", models[0])
            return "\n".join(f"{'*' if one == now else ' '} {one}" for one in models)
        if name not in models:
            return f"the server has no model {name!r}; {suggestion(name, models, repr)}"
        if why := base_model(self._session, name):
            return why
        self.options["model"] = name
        return f"{name} answers from now on"

    def _set(self, name: str = "", value: str = "") -> str:
        if not name:
            shown = {key: self.options[key] for key in KINDS if key in self.options}
            return ", ".join(f"{key} {chosen}" for key, chosen in shown.items()) or "everything is at the model's defaults"
        if name not in KINDS:
            return f"there is no {name!r} to set; {suggestion(name, list(KINDS))}"
        if not value:
            self.options.pop(name, None)
            return f"{name} is back to the model's default"
        from ..errors import ApiError  # imported here, since --help needs no web server
        from ..openai.fields import Options, fields_of

        try:
            chosen = KINDS[name](value)
            next(one for one in fields_of(Options) if one.name == name).kind.read(chosen, name)  # the server's bounds
        except ValueError:
            return f"{name} is {value!r}; give {'an integer' if KINDS[name] is int else 'a number'}"
        except ApiError as refused:
            return refused.message
        self.options[name] = chosen
        return f"{name} is {chosen}"


def complete_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--prompt", metavar="TEXT", help="what is continued")
    add_sampling(parser)


def complete(arguments: argparse.Namespace) -> int:
    """Continue one prompt and print the answer as it is generated. Without --prompt
    it reads the prompt from standard input.
    """
    prompt = sys.stdin.read() if arguments.prompt is None else arguments.prompt
    with reached(arguments) as session:
        stream(session.stream(prompt, **sampling(arguments)), arguments.verbose)
    return 0


def stream(call: BlockingCall, verbose: bool) -> str:
    """Print an answer as it arrives, then its speed on standard error if wanted; return the text.

    What the model thinks goes to standard error, before the text.
    """
    watch = Watch()
    thinking = False
    for piece in call:
        watch.saw(len(piece.token_ids))
        if piece.reasoning:
            print(piece.reasoning, end="", file=sys.stderr, flush=True)
        elif thinking and piece.text:
            print("\n", file=sys.stderr, flush=True)
        thinking = bool(piece.reasoning) or (thinking and not piece.text)
        print(piece.text, end="", flush=True)
    print(flush=True)
    assert call.answer is not None
    if verbose:
        print(watch.summary(call.answer), file=sys.stderr)
    return call.answer.text


class Watch:
    """A stopwatch for an answer, started when it is made and notified of tokens as they arrive."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._first: float | None = None
        self._last = self._began
        self._at_first = 0  # tokens that arrived with the first one

    def saw(self, tokens: int) -> None:
        if not tokens:
            return
        self._last = self._clock()
        if self._first is None:
            self._first, self._at_first = self._last, tokens

    def summary(self, answer: Answer) -> str:
        """Return prompt, time to first token, tokens per second after it, the finish reason and the id."""
        first = self._first if self._first is not None else self._last
        later = answer.completion_tokens - self._at_first
        rate = f"{later / (self._last - first):.1f} tok/s" if later > 0 and self._last > first else "- tok/s"
        begun = f"first token after {(first - self._began) * 1000:.0f} ms"
        ended = f"{answer.finish_reason} ({answer.id})"
        return f"[{answer.prompt_tokens} prompt tokens, {begun}, {answer.completion_tokens} tokens, {rate}, {ended}]"
