"""The settings of models: which are served, when requests go up to a top tier, and which have drafts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from ...policies.adaptive.variants import MOST_VARIANTS
from ...policies.drafts.choice import RULES, settings_fault
from ...policies.drafts.options import LARGEST as MOST_DRAFTS
from ...policies.model.confidence import FIRST_TOKENS, LONGEST, MEASURES, Threshold
from ...policies.model.tier_choice import MOST_THETA, family_of_auto, threshold_of
from ...policies.model.tiers import family_of
from .errors import SettingsError
from .part import COUNT, AllowedTexts, AtMost, Bounds, Counts, SettingsPart, Texts

MOST_WEIGHT = 1000  # an account's or a tier's most, against one of weight 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings(SettingsPart):
    """The models that are served from the start, and the places from which others may come."""

    applications: Annotated[
        Texts,
        "model id: checkpoint folder or hub id, or a table (path, base, system, temperature, ...); the first is the default",
    ] = field(default_factory=dict)
    application_defaults: Texts = field(default_factory=dict)  # by application, as in ``ModelInfo``
    default_model: Annotated[str, "model id of requests that name none; empty: the first"] = ""
    bases: Annotated[
        Texts, "adapter: its base application; default: the one that the adapter names, or the only whole model"
    ] = field(default_factory=dict)
    adapters: Annotated[
        str, "folder whose adapters are served, each under the name of its own folder, and loaded when requests ask for them"
    ] = ""
    app_roots: Annotated[
        str, "folders, separated by commas, from which applications may be added at run time; empty: none may"
    ] = ""
    apps_file: Annotated[
        str, "file that keeps additions and removals at run time for the next start; empty: one in adapters, if that is set"
    ] = ""
    turns: Annotated[Texts, "model id: JSON file of its turn template, as response_template in tokenizer_config.json"] = (
        field(default_factory=dict)
    )
    exits: Annotated[Texts, "application: layers of lower tiers, as 8,16, without exits.json"] = field(default_factory=dict)
    adaptive: Annotated[
        Texts,
        "model id: off; equal: chains with blocks of others that `blockwright zoo equivalence` found equal may answer; "
        "any: also less accurate ones, see accuracy",
    ] = field(default_factory=dict)
    accuracy: Annotated[
        Texts, "model id with adaptive=any: served models that may answer in its place, most accurate first, as a,b,c"
    ] = field(default_factory=dict)
    variants: Annotated[
        int, "most other chains that may answer in a model's place (adaptive), at most 64; 0: none", COUNT, AtMost(64)
    ] = MOST_VARIANTS
    switches: Annotated[
        int, "changes of chain for a running request that gains by them (adaptive), at most 100; 0: none", COUNT, AtMost(100)
    ] = 2
    similarity_share: Annotated[
        float,
        "share of the answers by other chains (adaptive) that the model's own chain scores in idle time, 0 to 1",
        Bounds("a share of answers, 0 to 1", 0, 1),
    ] = 0.0
    on_demand: Annotated[bool, "load applications that do not fit in memory when requests need them; no: refuse them"] = True

    def may_serve(self, name: str) -> bool:
        """Return whether an application has this id, or may have tiers of which one has it or which it chooses among."""
        return bool({name, family_of(name), family_of_auto(name)} & self.applications.keys())

    @property
    def more_may_come(self) -> bool:
        """True if models are served, now or later, that no setting names."""
        return bool(self.app_roots or self.adapters or self.apps_file)

    def exit_layers(self, name: str) -> list[int]:
        """Return the layers of an application's lower tiers; none: the checkpoint says."""
        return [int(part) for part in self.exits.get(name, "").split(",") if part.strip()]

    def accuracy_order(self, name: str) -> list[str]:
        """Return the models that may answer in an application's place, the most accurate first; itself may be among them."""
        order = self.accuracy.get(name, "").strip()
        return [one.strip() for one in order.split(",")] if order else []

    def _check_variants(self) -> None:
        """Refuse settings of variants that have no effect."""
        varied = [name for name, mode in self.adaptive.items() if mode != "off"]
        for one in ("variants", "switches", "similarity_share"):
            if not varied and (value := getattr(self, one)) != self.__dataclass_fields__[one].default:
                raise SettingsError(f"{one} is {value}, but no model has adaptive; set adaptive.NAME, or leave {one} out")

    def _check_accuracy(self, name: str) -> None:
        """Refuse an order that nothing uses, or with a model that is not served."""
        if self.adaptive.get(name) != "any":
            raise SettingsError(f"accuracy.{name} is given, but adaptive.{name} is not any; set that, or leave accuracy out")
        order = self.accuracy_order(name)
        if "" in order:
            raise SettingsError(f"accuracy.{name} is {self.accuracy[name]!r}, with an empty entry; give models as a,b,c")
        if twice := next((one for one in order if order.count(one) > 1), ""):
            raise SettingsError(f"accuracy.{name} names {twice} twice; name each model once")
        if stranger := next((one for one in order if not (self.may_serve(one) or self.more_may_come)), ""):
            raise SettingsError(
                f"accuracy.{name} names {stranger}, which is not served; there are: {listed(self.applications)}"
            )

    def check_together(self) -> None:
        if self.default_model and not (self.may_serve(self.default_model) or self.more_may_come):
            there = listed(self.applications)
            raise SettingsError(f"default_model is {self.default_model!r}, which is not served; there are: {there}")
        for name, base in self.bases.items():
            for one in (name, base):
                if not self.may_serve(one) and not (one is name and self.more_may_come):
                    there = listed(self.applications)
                    raise SettingsError(f"bases.{name} = {base!r}: {one} is not an application; there are: {there}")
        for name in self.turns:
            if not self.may_serve(name) and not self.more_may_come:
                raise SettingsError(f"turns.{name} names no application; there are: {listed(self.applications)}")
        for name, mode in self.adaptive.items():
            if name not in self.applications and not self.more_may_come:
                raise SettingsError(f"adaptive.{name} names no application; there are: {listed(self.applications)}")
            if mode not in ("off", "equal", "any"):
                raise SettingsError(f"adaptive.{name} is {mode!r}; give off, equal or any")
        self._check_variants()
        for name in self.accuracy:
            self._check_accuracy(name)
        for name, mode in self.adaptive.items():
            if mode == "any" and not {*self.accuracy_order(name)} - {name}:
                raise SettingsError(f"adaptive.{name} is any, which needs an order of models; give accuracy.{name}=A,B,...")
        for name, text in self.exits.items():
            if name not in self.applications and not (self.app_roots or self.apps_file):
                raise SettingsError(f"exits.{name} names no application; there are: {listed(self.applications)}")
            if not all(re.fullmatch("[0-9]{1,9}", part.strip()) for part in text.split(",")):
                raise SettingsError(f"exits.{name} is {text!r}; give numbers of layers separated by commas, as 8,16")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSettings(SettingsPart):
    """The sources of drafts, by model, and the length of drafts."""

    drafts: Annotated[
        Texts, "model id: source of drafts: off, prompt, tier:LAYERS, a model or auto; *: models without an entry"
    ] = field(default_factory=dict)
    speculate: Annotated[
        Texts,
        "model id: off; tokens: the chain with a surrogate of a block (`blockwright zoo surrogate`) drafts; hidden: a "
        "surrogate guesses hidden states at a border of a pipeline, answers are approximate; default: tokens if surrogates "
        "promise to gain",
    ] = field(default_factory=dict)
    exact: Annotated[bool, "with speculate=hidden: accept no guess, so that answers are exact; all else is computed"] = False
    draft_tokens: Annotated[
        int,
        "tokens drafted in a step, at most 16; 0: as many as pay",
        Bounds(f"0 (as many as pay) to {MOST_DRAFTS}", 0, MOST_DRAFTS),
    ] = 0
    draft_rule: Annotated[
        str, "acceptance of drafts: coupling or, as an ablation, rejection: other tokens", AllowedTexts(*RULES)
    ] = "coupling"
    forced: Annotated[
        str,
        "on: tokens at which a constraint leaves no choice are computed together, in one step",
        AllowedTexts("off", "on"),
    ] = "off"

    def check_names(self, models: ModelSettings) -> None:
        """Refuse wrong sources, and drafts of applications that there are not."""
        known = None if models.more_may_come else models.applications
        if fault := settings_fault(self.drafts, known):
            raise SettingsError(fault)
        for name, mode in self.speculate.items():
            if name not in models.applications:
                raise SettingsError(f"speculate.{name} names no application; there are: {listed(models.applications)}")
            if mode not in ("off", "tokens", "hidden"):
                raise SettingsError(f"speculate.{name} is {mode!r}; give off, tokens or hidden")
            if mode != "off" and name in self.drafts:
                raise SettingsError(f"speculate.{name} is {mode}, and drafts.{name} is {self.drafts[name]!r}; choose one")
        if self.exact and not self.guessing:
            raise SettingsError("exact is on, and no model has speculate=hidden, whose guesses it refuses; leave exact out")

    @property
    def speculating(self) -> list[str]:
        """The applications for which a chain with a surrogate drafts."""
        return [name for name, mode in self.speculate.items() if mode == "tokens"]

    @property
    def guessing(self) -> list[str]:
        """The applications whose hidden states a surrogate guesses."""
        return [name for name, mode in self.speculate.items() if mode == "hidden"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings(SettingsPart):
    """The rules by which requests go up to the top tier of their family, and by which tiers share workers."""

    theta: Annotated[
        dict[str, float],
        "family: confidence in an answer's first tokens, 0 to 1, below which NAME:auto takes the top tier; * for others; "
        "default: what family report found, else 0.9",
        Bounds(f"0 (never up) to 1, or {MOST_THETA:g} (always up)", 0, MOST_THETA),
    ] = field(default_factory=dict)
    auto_tokens: Annotated[
        int,
        "with theta: first tokens that the confidence looks at, at most 256",
        Bounds(f"1 to {LONGEST} ({FIRST_TOKENS} is the default)", 1, LONGEST),
    ] = FIRST_TOKENS
    tier_weights: Annotated[
        Counts,
        "model id of a tier: its share of the work within its family and account, against tiers of weight 1",
        Bounds(f"1 to {MOST_WEIGHT}", 1, MOST_WEIGHT),
    ] = field(default_factory=dict)
    tier_fairness: Annotated[bool, "share work between the tiers of a family; off, as an ablation: by arrival"] = True
    tier_preemption: Annotated[bool, "let an urgent request take the row of another; off, as an ablation: it waits"] = True
    class_ageing: Annotated[
        float,
        "seconds of waiting, at most a day, after which a request rises by one service class; 0: never",
        Bounds("seconds, 0 (never) to 86400", 0, 86400),
    ] = 10.0
    auto_measure: Annotated[
        str, "with theta: mean, least (probability), margin (to the second) or entropy", AllowedTexts(*MEASURES)
    ] = "mean"

    def check_names(self, models: ModelSettings) -> None:
        """Refuse rules of applications that there are not."""
        for name in self.theta:
            if not models.more_may_come and name != "*" and name not in models.applications:
                raise SettingsError(f"theta.{name} names no application; there are: {listed(models.applications)}")
        for name in self.tier_weights:
            if not models.more_may_come and not {name, family_of(name)} & models.applications.keys():
                raise SettingsError(f"tier_weights.{name} names no application; there are: {listed(models.applications)}")

    def rule(self, family: str, stored: Threshold | None) -> Threshold:
        """Return the rule of a family. ``stored``: the one in its folder; None: there is none."""
        return threshold_of(family, stored, self.theta, self.auto_measure, self.auto_tokens)


def listed(names: Iterable[str]) -> str:
    """Return names as a sentence lists them."""
    return ", ".join(sorted(names)) or "none"
