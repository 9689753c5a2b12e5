"""A conversation on a terminal: its messages, the options of the next request, and the lines that begin with /.

It prints only answers; ``chat.py`` reads lines and prints the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...policies.nearest import suggestion
from .complete import stream

if TYPE_CHECKING:
    from ..program.blocking import BlockingSession

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
            return ", ".join(f"{key} {told}" for key, told in shown.items()) or "everything is at the model's defaults"
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
