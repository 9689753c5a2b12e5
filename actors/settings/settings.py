"""All settings of a serving cluster: one frozen record of parts, each with an owner. Standard library and policies only.

Users write settings by their flat names (``--set name=value``, a file for ``--config``, keywords in a program);
``SETTINGS`` says in which part each lies, and is made from the parts alone. A name is a setting if a meaning stands beside
its type, the description in ``blockwright serve --show-settings`` and docs/serving.md; the text beside a part heads its
section there. A part goes to what needs it, in place of the whole. Sizes are bytes, times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from ...policies.nearest import suggestion
from .autoscaling import AutoscaleSettings
from .batching import BatchingSettings
from .dispatching import DispatchSettings
from .errors import SettingsError
from .faults import FaultSettings
from .joining import JoinSettings
from .launching import LaunchSettings
from .logs import LogSettings
from .memory import MemorySettings
from .models import DraftSettings, ModelSettings, TierSettings
from .network import NetworkSettings
from .offline import OfflineSettings
from .parameter_drops import ParameterDropSettings
from .part import Bounds, Mark, field_hints
from .requests import RequestSettings
from .sources import SourceSettings
from .tagging import TaggerSettings
from .tenants import TenantSettings
from .workers import WorkerSettings


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of a part, which users set by its name if it has a meaning.

    ``group``: the heading of its part. ``range``: the numbers that it may be, behind the word "give"; "": any.
    """

    part: str
    kind: Any
    default: Any
    meaning: str
    group: str
    marks: frozenset[Mark]
    range: str

    @classmethod
    def of(cls, part: str, group: str, hint: Any, default: Any) -> Setting:
        """Return a field from its annotation."""
        behind = getattr(hint, "__metadata__", ())
        marks = frozenset(one for one in behind if isinstance(one, Mark))
        meaning = next((one for one in behind if isinstance(one, str)), "")
        numbers = ", ".join(one.give for one in behind if isinstance(one, Bounds))
        return cls(part, hint.__origin__ if behind else hint, default, meaning, group, marks, numbers)


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Settings:
    """The settings of a cluster (see the module). Checked when made."""

    models: Annotated[ModelSettings, "Models"]
    worker: Annotated[WorkerSettings, "Workers"]
    sources: Annotated[SourceSettings, "Where workers find models"]
    worker_memory: Annotated[MemorySettings, "Memory and the prefix cache"]
    batching: Annotated[BatchingSettings, "Batching"]
    tiering: Annotated[TierSettings, "Tiers"]
    drafting: Annotated[DraftSettings, "Drafts"]
    requests: Annotated[RequestSettings, "Limits of requests"]
    tenants: Annotated[TenantSettings, "Tenants"]
    network: Annotated[NetworkSettings, "Network, keys and TLS"]
    joining: Annotated[JoinSettings, "Workers on other machines"]
    launching: Annotated[LaunchSettings, "Launching workers elsewhere"]
    faults: Annotated[FaultSettings, "Faults and shutdown"]
    dispatching: Annotated[DispatchSettings, "Dispatch"]
    autoscaling: Annotated[AutoscaleSettings, "Autoscaling"]
    parameter_drops: Annotated[ParameterDropSettings, "Overload"]
    offline: Annotated[OfflineSettings, "Offline batches"]
    logs: Annotated[LogSettings, "Logs and traces"]
    tagging: Annotated[TaggerSettings, "Forecasts of answer lengths"]

    def __init__(self, **values: Any) -> None:
        """Make the settings from flat names, as users write them, or from whole parts by the names above."""
        _check_keywords(values)
        for part, kind in PARTS.items():
            given = {field.name: values[field.name] for field in fields(kind) if field.name in values}
            made = replace(values[part], **given) if part in values else kind(**given)
            object.__setattr__(self, part, made)
        self._check()

    def changed(self, **values: Any) -> Settings:
        """Return these settings with other values, by flat names or parts."""
        return Settings(**{part: getattr(self, part) for part in PARTS} | values)

    def value(self, name: str) -> Any:
        """Return the value of a setting by its flat name."""
        return getattr(getattr(self, SETTINGS[name].part), name)

    def _check(self) -> None:
        """Refuse parts that do not go together."""
        self.worker.check_names(self.models)
        self.tiering.check_names(self.models)
        self.drafting.check_names(self.models)
        self.tenants.check_names(self.network.tenants, self.models)
        self.autoscaling.check_beside(self.worker, self.dispatching)
        self.dispatching.check_kv(self.worker_memory)
        self.launching.check_beside(self.joining, self.worker, self.autoscaling)
        self.parameter_drops.check_beside(self.worker, self.autoscaling, self.worker_memory)


PARTS: dict[str, Any] = {name: hint.__origin__ for name, hint in field_hints(Settings).items()}
SETTINGS = {  # by flat name, in the order of the record
    name: Setting.of(part, field_hints(Settings)[part].__metadata__[0], hint, getattr(kind(), name))
    for part, kind in PARTS.items()
    for name, hint in field_hints(kind).items()
}
NAMES = [name for name, setting in SETTINGS.items() if setting.meaning]  # of the settings that users write


def check_name(name: str) -> str:
    """Return the name of a setting that users write; refuse any other."""
    if name in SETTINGS and SETTINGS[name].meaning:
        return name
    raise SettingsError(f"there is no setting {name!r}; {suggestion(name, sorted(NAMES))}")


def _check_keywords(values: Mapping[str, Any]) -> None:
    """Refuse keywords that name neither a field nor, with a value of its class, a part."""
    for name, value in values.items():
        if name not in SETTINGS and not (name in PARTS and isinstance(value, PARTS[name])):
            check_name(name)
