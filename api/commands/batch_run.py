"""The command ``batch run``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from . import CommandError, command_errors
from .connection import refusals

if TYPE_CHECKING:
    from ..batches.lines import BatchLine, LineAnswer
    from ..batches.local_files import BatchInput, BatchOutput
    from ..batches.local_job import LocalJob
    from ..program.embedded import Cluster
    from ..program.progress import Bar


def batch_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="IN.jsonl", type=Path, help="a file with a request on each line")
    parser.add_argument(
        "-o", "--output", metavar="OUT.jsonl", type=Path, required=True, help="file to which answers are appended"
    )
    parser.add_argument(
        "--model", metavar="PATH_OR_HUB_ID", required=True, help="checkpoint folder or hub id; its name is the model id"
    )
    parser.add_argument(
        "--redo",
        action="store_true",
        help="drop answers of OUT.jsonl whose request or model has changed, and answer these lines anew; keep the others",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting, such as --set workers=2; may be repeated",
    )


def batch_run(arguments: argparse.Namespace) -> int:
    """Answer a file of requests without a server: JSON lines in, JSON lines out, in
    the format of OpenAI's batches.

    A line is {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
    "body": {...}}. Lines run in an efficient order: a shared prefix is computed
    once, and long prompts run beside long answers. If it is interrupted, run the
    same command again: it continues, and computes nothing twice. If a prompt or the
    model has changed since, its answer is not kept silently: --redo answers such
    lines again. Lines that fail are in OUT.errors.jsonl and are tried again by the
    next run. The exit code is 0 if every line is answered and 1 if some failed.
    """
    from ..batches.local_files import BatchFileError, BatchInput, BatchOutput
    from ..batches.model_identity import model_identities
    from ..program.embedded import ALONE, Cluster

    with refusals(), contextlib.ExitStack() as files:
        cluster = Cluster(arguments.model, sets=arguments.set, **ALONE)  # mistakes are reported before files are read
        with command_errors(BatchFileError):
            given = files.enter_context(contextlib.closing(BatchInput(arguments.input)))
            output = files.enter_context(contextlib.closing(BatchOutput(arguments.output)))
            batch = _FileBatch(given, output, model_identities(cluster.settings), redo=arguments.redo)
        try:
            asyncio.run(batch.answer(cluster))
        except BatchFileError as error:
            raise CommandError(str(error)) from None
        except (KeyboardInterrupt, SystemExit):  # Ctrl-C, SIGTERM
            print(batch.stopped(), file=sys.stderr)
            raise
    return batch.print_outcome()


def _lines(count: int) -> str:
    return f"{count:,} line{'s' * (count != 1)}"


class _FileBatch:
    """One input, its output and its errors. ``models``: their identities by model id, the default one first."""

    def __init__(self, given: BatchInput, output: BatchOutput, models: Mapping[str, str], redo: bool) -> None:
        from ..batches.local_files import BatchFileError, compare, errors_path, stale_sentence

        self._given, self._output = given, output
        self._errors_path = errors_path(output.path)
        if self._errors_path.exists() and self._errors_path.samefile(given.path):
            raise BatchFileError(f"{given.path} is where the errors would be written; rename it, or name another output")
        compared = compare(given, output, models)
        if compared.stale and not redo:
            raise BatchFileError(stale_sentence(compared.stale))
        if compared.stale:
            output.drop({one.number for one in compared.stale})
        self._done = compared.done
        self._models = models
        self._dropped = len(compared.stale)
        self._before = self.answered = len(self._done)
        self._errors_path.unlink(missing_ok=True)
        self._errors: BatchOutput | None = None
        self._failed: list[tuple[int, str]] = []
        self._bar: Bar | None = None
        self._job: LocalJob | None = None
        self._sharing = self._tokens = 0.0

    async def answer(self, cluster: Cluster) -> None:
        """Answer all lines that have no answer yet."""
        from ..batches.local_files import error_line
        from ..batches.local_job import LocalJob
        from ..program.progress import Bar

        for line, refused in self._given.refused.items():
            id = self._given.custom_id(line)
            self._fail(line, str(refused), error_line(_new_id(), id, refused))
        lines = self._given.good()
        if len(lines) == len(self._done):
            return
        with Bar(len(lines), sys.stderr.isatty(), estimated=False) as self._bar:
            async with cluster:
                self._job = LocalJob(cluster.front, cluster.caller, self._line, self._keep)
                self._bar.begin("checking")
                await self._job.check(lines, self._done, self._bar.advance)
                self._bar.begin("answering", self.answered + len(self._failed) - len(self._given.refused))
                await self._job.run(self._done)
                jobs = self._job.progress()
        self._tokens = sum(job.done_tokens for job in jobs)
        prompts = sum(job.prompt_tokens for job in jobs)
        self._sharing = sum(job.sharing * job.prompt_tokens for job in jobs) / prompts if prompts else 0.0

    def stopped(self) -> str:
        """Return a sentence on the kept answers of a run that did not end, and on how to go on."""
        progress = f"answered {self.answered} of {_lines(len(self._given))}"
        return f"{progress}, kept in {self._output.path}; the same command answers the rest"

    def print_outcome(self) -> int:
        """Print the outcome on standard error; return the exit code."""
        from ..batches.local_files import summary

        if self._errors is not None:
            self._errors.close()
        news = self.answered - self._before
        before = [f"{self._before} before"] * bool(self._before) + [f"{self._dropped} dropped"] * bool(self._dropped)
        here = f" ({', '.join(before)})" if before else ""
        shared = f", {self._sharing:.0%} of their prompts' tokens shared" if news else ""
        print(f"answered {self.answered} of {_lines(len(self._given))}{here}{shared}: {self._output.path}", file=sys.stderr)
        if not self._failed:
            return 0
        print(f"{len(self._failed)} failed: {self._errors_path}", file=sys.stderr)
        for sentence in summary(self._failed):
            print(f"  {sentence}", file=sys.stderr)
        return 1

    def _line(self, line: int) -> BatchLine:
        from ..batches.lines import LineRefused
        from ..batches.local_files import BatchFileError

        try:
            return self._given.line(line)
        except LineRefused as error:
            where = f"line {self._given.number(line)} of {self._given.path}"
            raise BatchFileError(f"{where} has changed since it was checked ({error}); run the command again") from None

    def _keep(self, line: int, answer: LineAnswer) -> None:
        from ..batches.lines import result_line
        from ..batches.local_files import MODEL_HASH, REQUEST_HASH, said

        assert self._bar is not None
        id, custom_id = _new_id(), self._given.custom_id(line)
        if answer.status == 200:
            model = self._given.model(line) or next(iter(self._models))
            hashes = {REQUEST_HASH: self._given.hash(line), MODEL_HASH: self._models.get(model, "")}
            self._output.append(result_line(id, custom_id, answer, more=hashes))
            self.answered += 1
        else:
            self._fail(line, said(answer), result_line(id, custom_id, answer))
        if self._job is not None and (jobs := self._job.progress()):
            self._bar.advance(1)
            self._bar.show(jobs)

    def _fail(self, line: int, why: str, raw: bytes) -> None:
        from ..batches.local_files import BatchOutput

        if self._errors is None:
            self._errors = BatchOutput(self._errors_path)
        self._errors.append(raw)
        self._failed.append((self._given.number(line), why))


def _new_id() -> str:
    return f"batch_req_{secrets.token_hex(12)}"
