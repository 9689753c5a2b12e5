"""All settings of a serving cluster in one frozen record. Standard library only.

``blockwright serve`` reaches each field by ``--set name=value`` or a TOML file given with ``--config``; the few that people
expect have a flag of their own. Sizes are bytes, times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field


class SettingsError(ValueError):
    """A setting that cannot be; the message names the field, the value and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """See the module. Checked when made."""

    applications: dict[str, str] = field(default_factory=dict)  # model id -> checkpoint folder; the first is the default
    workers: int = 1
    device: str = "cpu"
    dtype: str = "auto"  # auto (as stored; float16 becomes float32 on a CPU) | float32 | bfloat16
    backend: str = "auto"  # auto | native | torch
    threads: int = 0  # kernel threads per worker; 0: cores divided by workers, at least 1
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: dict[str, str] = field(default_factory=dict)  # key -> tenant
    max_model_len: int = 0  # 0: as the checkpoint says, at most 8192
    memory: int = 0  # per worker; 0: 60 % of free memory divided by the workers
    page_size: int = 16
    chunk_size: int = 256
    sweep_tokens: int = 512
    max_rows: int = 256
    pipeline: int = 1  # workers that each chain is spread over
    pipelines: dict[str, int] = field(default_factory=dict)  # the same for single applications
    prefix_cache: bool = True
    pace: str = ""  # cost table (JSON) that sweeps are held to
    stall_timeout: float = 10.0  # a sweep older than this (pace excluded) means a hung worker
    heartbeat: float = 0.5
    silence: float = 2.0  # a worker that says nothing for this long is declared down
    worker_wait: float = 30.0  # how long requests wait while no route exists
    drain_timeout: float = 30.0
    max_waiting: int = 4096  # requests in the server beyond which new ones get 503
    unknown_fields: str = "warn"  # warn (a response header lists them) | reject
    directory: str = ""  # of the cluster's sockets; empty: a fresh private one
    check: bool = False  # verify the memory invariant after every sweep, not only when idle

    def __post_init__(self) -> None:
        positive = ("workers", "page_size", "chunk_size", "sweep_tokens", "max_rows", "pipeline", "max_waiting")
        for name in positive:
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; give at least 1")
        for name in ("threads", "memory", "max_model_len", "port"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; give 0 (the default) or more")
        choices = {
            "device": ("cpu",),
            "dtype": ("auto", "float32", "bfloat16"),
            "backend": ("auto", "native", "torch"),
            "unknown_fields": ("warn", "reject"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise SettingsError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(allowed)}")
        for name, span in {"": self.pipeline, **self.pipelines}.items():
            label = f"pipelines.{name}" if name else "pipeline"
            if not 1 <= span <= self.workers or self.workers % span:
                raise SettingsError(f"{label} is {span} with {self.workers} workers; give a divisor of workers")
            if name and name not in self.applications:
                raise SettingsError(f"{label} names no application; there are: {', '.join(self.applications)}")
        for name in ("stall_timeout", "heartbeat", "silence", "worker_wait", "drain_timeout"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; give a positive number of seconds")
        if self.silence < 2 * self.heartbeat:
            raise SettingsError(f"silence is {self.silence} s; give at least twice heartbeat ({self.heartbeat} s)")
        if self.sweep_tokens < self.max_rows:
            raise SettingsError(
                f"sweep_tokens is {self.sweep_tokens}, less than max_rows ({self.max_rows}); every running sequence "
                "needs a token in a sweep: raise sweep_tokens or lower max_rows"
            )
