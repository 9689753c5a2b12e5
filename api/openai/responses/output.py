"""The output of a response as it grows: items, and the typed events that build them.

One item is open at a time. For each, the deltas of its events join to the text of its ``done`` event, which is the item's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from json.encoder import encode_basestring_ascii as quote

from ...text.turn.json_calls import CallPiece
from ..chat import call_id
from .custom_tools import InputReader
from .items import CALL, CUSTOM_CALL, MESSAGE, REASONING, sealed

_PREFIXES = {MESSAGE: "msg", REASONING: "rs", CALL: "fc", CUSTOM_CALL: "ctc"}
COMPLETED, INCOMPLETE = "completed", "incomplete"
IN_PROGRESS = "in_progress"


class EventSequence:
    """The events that were made and not yet taken, numbered from 0. ``quiet``: none are made."""

    def __init__(self, *, quiet: bool) -> None:
        self._number = 0
        self._made: list[str] = []
        self._quiet = quiet

    def add(self, kind: str, members: str) -> None:
        """Add an event. ``members``: JSON without braces."""
        if not self._quiet:
            head = f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":{self._number},'
            self._made.append(f"{head}{members}}}\n\n")
            self._number += 1

    def take(self) -> bytes:
        """Return the events since the last call."""
        made, self._made = "".join(self._made), []
        return made.encode()


class _OpenItem:
    """The item that grows. ``kind``: its type. ``summary``: its text is the summary of reasoning.

    What clients see of it is JSON throughout, so that long answers are not written again at their end.
    """

    def __init__(self, kind: str, id: str, index: int, log: EventSequence, *, summary: bool = False) -> None:
        self.kind, self.id = kind, id
        self.index = index
        self.summary = summary
        self.name = self.call_id = ""
        self.reader = InputReader() if kind == CUSTOM_CALL else None
        self._logprobs: list[str] = []
        self._log = log
        self._texts: list[str] = []
        self._at = f'"item_id":"{id}","output_index":{index}'
        self._part = f'{self._at},"{"summary" if summary else "content"}_index":0'

    @property
    def whole(self) -> bool:
        """False for a call that was cut off."""
        if self.reader is not None:
            return self.reader.ended
        try:
            return self.kind != CALL or isinstance(json.loads("".join(self._texts)), dict)
        except (ValueError, RecursionError):
            return False

    def begin(self) -> None:
        """Add the events that open it."""
        self._log.add(
            "response.output_item.added", f'"output_index":{self.index},"item":{self.shown(IN_PROGRESS, begun=True)}'
        )
        if self.kind in (MESSAGE, REASONING):
            self._log.add(f"{self._part_name}.added", f'{self._part},"part":{self._shown_part()}')

    def add(self, text: str, logprobs: Sequence[str]) -> None:
        """Add text. ``logprobs``: of its tokens. Without a text they are in no delta, but in what closes it."""
        self._logprobs += logprobs
        if not text:
            return
        self._texts.append(text)
        of_part = self.kind in (MESSAGE, REASONING)
        more = f',"logprobs":[{",".join(logprobs)}]' if self.kind == MESSAGE else ""
        self._log.add(f"{self._text_name}.delta", f'{self._part if of_part else self._at},"delta":{quote(text)}{more}')

    def end(self, status: str, *, seals: bool) -> str:
        """Add the events that close it; return it as it stands in the output."""
        text, item = quote("".join(self._texts)), self.shown(status, seals=seals)
        if self.kind in (MESSAGE, REASONING):
            more = f',"logprobs":[{",".join(self._logprobs)}]' if self.kind == MESSAGE else ""
            self._log.add(f"{self._text_name}.done", f'{self._part},"text":{text}{more}')
            self._log.add(f"{self._part_name}.done", f'{self._part},"part":{self._shown_part()}')
        elif self.kind == CALL:
            self._log.add(f"{self._text_name}.done", f'{self._at},"name":{quote(self.name)},"arguments":{text}')
        else:
            self._log.add(f"{self._text_name}.done", f'{self._at},"input":{text}')
        self._log.add("response.output_item.done", f'"output_index":{self.index},"item":{item}')
        return item

    @property
    def _part_name(self) -> str:
        return "response.reasoning_summary_part" if self.summary else "response.content_part"

    @property
    def _text_name(self) -> str:
        """The beginning of the names of its events about text."""
        if self.kind == REASONING:
            return "response.reasoning_summary_text" if self.summary else "response.reasoning_text"
        names = {MESSAGE: "output_text", CALL: "function_call_arguments", CUSTOM_CALL: "custom_tool_call_input"}
        return f"response.{names[self.kind]}"

    def _shown_part(self) -> str:
        text = quote("".join(self._texts))
        if self.kind == REASONING:
            return f'{{"type":"{"summary_text" if self.summary else "reasoning_text"}","text":{text}}}'
        return f'{{"type":"output_text","text":{text},"annotations":[],"logprobs":[{",".join(self._logprobs)}]}}'

    def shown(self, status: str, *, begun: bool = False, seals: bool = False) -> str:
        """Return the item as clients see it. ``begun``: before its first text. ``seals``: with its text sealed."""
        head = f'{{"type":"{self.kind}","id":"{self.id}","status":"{status}"'
        text = "".join(self._texts)
        if self.kind in (CALL, CUSTOM_CALL):
            key = "arguments" if self.kind == CALL else "input"
            return f'{head},"call_id":"{self.call_id}","name":{quote(self.name)},"{key}":{quote(text)}}}'
        part = "" if begun else self._shown_part()
        if self.kind == MESSAGE:
            return f'{head},"role":"assistant","content":[{part}]}}'
        summary, content = (part, "") if self.summary else ("", part)
        seal = f',"encrypted_content":"{sealed(text)}"' if seals and not begun else ""
        return f'{head},"summary":[{summary}],"content":[{content}]{seal}}}'


class Output:
    """The items of one answer. ``stem``: the part that all their ids have. ``custom``: names of custom tools.

    ``summarised``, ``seals``: how reasoning is given (see ``ResponseOptions``).
    """

    def __init__(self, stem: str, custom: Collection[str], log: EventSequence, *, summarised: bool, seals: bool) -> None:
        self._stem, self._custom = stem, custom
        self._summarised, self._seals = summarised, seals
        self._log = log
        self._done: list[str] = []
        self._open: _OpenItem | None = None
        self.answered = False  # there is a text or a call

    def reason(self, text: str) -> None:
        """Add to the thinking."""
        self._of(REASONING).add(text, ())

    def write(self, text: str, logprobs: Sequence[str]) -> None:
        """Add to the text. ``logprobs``: of its tokens, each as JSON."""
        self._of(MESSAGE).add(text, logprobs)

    @property
    def writing(self) -> bool:
        """True while a text grows."""
        return self._open is not None and self._open.kind == MESSAGE

    def call(self, piece: CallPiece) -> None:
        """Add to a call; one with a name begins a new one."""
        if piece.name:
            self._begin(CUSTOM_CALL if piece.name in self._custom else CALL, piece.name)
        item = self._open
        assert item is not None
        text = piece.arguments if item.reader is None else item.reader.feed(piece.arguments)
        if text:
            item.add(text, ())

    def close(self, status: str) -> None:
        """End the item that is open. ``status``: COMPLETED or INCOMPLETE."""
        if self._open is not None:
            self._done.append(self._open.end(status, seals=self._seals))
            self._open = None

    def finish(self, status: str) -> None:
        """End the output. A complete answer without a text or a call has an empty text."""
        if self._open is not None and self._open.kind in (CALL, CUSTOM_CALL):
            self.close(COMPLETED if self._open.whole else INCOMPLETE)
        self.close(status)
        if status == COMPLETED and not self.answered:
            self._begin(MESSAGE)
            self.close(status)

    def items(self) -> str:
        """Return the JSON list of all items; one that is open is incomplete."""
        opened = [self._open.shown(INCOMPLETE)] if self._open is not None else []
        return f"[{','.join([*self._done, *opened])}]"

    def _of(self, kind: str) -> _OpenItem:
        """Return the open item, which is of this kind then."""
        if self._open is None or self._open.kind != kind:
            self._begin(kind)
        assert self._open is not None
        return self._open

    def _begin(self, kind: str, name: str = "") -> None:
        self.close(COMPLETED)
        index = len(self._done)
        id = f"{_PREFIXES[kind]}_{self._stem}_{index}"
        self._open = _OpenItem(kind, id, index, self._log, summary=kind == REASONING and self._summarised)
        if name:
            self._open.name, self._open.call_id = name, call_id(self._stem, 0, index)
        self.answered = self.answered or kind != REASONING
        self._open.begin()
