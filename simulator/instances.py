"""Instances of a simulated cluster, made from their description: chains of components, sweep configurations, machines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..policies.adaptive.speculation import drafting_chain
from ..policies.control.events import Application
from ..policies.model.chain import Block, Chain, Component, Hop, Kind, KvLayout, Route
from ..policies.model.partition import cut_blocks
from ..policies.overload.drop_plan import kv_bytes, nbytes
from ..policies.plan.coefficients import Coefficients
from ..policies.prediction.instance import Instance
from ..policies.prediction.machines import LinkTimes
from ..policies.prediction.pipeline_instance import PipelineInstance
from ..policies.requests.paces import Paces, compared, token_seconds
from ..policies.requests.routes_changed import RoutesChanged
from ..policies.sweep.config import SweepConfig
from .description import InstanceSpec, Scenario
from .drafts import DraftOutcomes
from .model_spec import ModelSpec, placed

Made = tuple[Instance | PipelineInstance, dict[str, Route]]  # an instance, and its route by model


class NoCapacityError(ValueError):
    """The memory of an entry of ``instances`` holds no KV beside the parameters. ``entry`` is its number."""

    def __init__(self, entry: int, spec: InstanceSpec, held: int, page: int) -> None:
        beside = f" beside {held:,} bytes of parameters" if held else ""
        super().__init__(
            f"is {spec.memory:,}; it holds no page of KV ({page:,} bytes, in chunks of memory_chunk){beside}; give more"
        )
        self.entry = entry


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """One instance of an entry of ``instances``, the cost of its sweeps, and its chains by model."""

    name: str
    entry: int
    spec: InstanceSpec
    costs: Coefficients
    chains: dict[str, Chain]

    @property
    def workers(self) -> list[str]:
        """The names of its devices."""
        return self.spec.devices(self.name)


class InstanceMaker:
    """Factory of the instances of a scenario, by place. ``coefficients`` are for each entry of ``scenario.instances``.

    Parameters take their memory beforehand if the instances are ``loaded``; otherwise what is loaded takes it.
    """

    def __init__(
        self, scenario: Scenario, coefficients: Sequence[Coefficients], *, jumps: bool = True, loaded: bool = True
    ) -> None:
        self._models, self._links = scenario.models, scenario.links
        self._jumps, self._loaded = jumps, loaded
        self._memory: dict[str, Any] = {}
        if scenario.on_demand:
            self._memory = {"on_demand": True, "kv_reserve": scenario.loading.kv_reserve}
        drafts = {model.name: model.drafts for model in scenario.models if model.drafts is not None}
        self._accept = DraftOutcomes(scenario.seed, drafts) if drafts else None
        self.plans: list[InstancePlan] = []
        for entry, (spec, found) in enumerate(zip(scenario.instances, coefficients, strict=True)):
            chains = {one.application: one for one in chains_of(placed(scenario.models, spec.name), spec)}
            self.plans += [InstancePlan(name, entry, spec, found, chains) for name in spec.names]

    def paces(self) -> Paces:
        """Return how fast the devices are, by the cost models of their instances."""
        return compared({worker: token_seconds(plan.costs) for plan in self.plans for worker in plan.workers})

    def make(self, place: int) -> Made:
        """Return a new instance with routes of all models that are placed there."""
        plan = self.plans[place]
        spec, chains = plan.spec, plan.chains.values()
        models = placed(self._models, spec.name)
        configs = [replace(one, **self._memory) for one in sweep_configs(plan.name, spec, models, loaded=self._loaded)]
        hops = hops_of([config.worker for config in configs])
        routes = {c.application: Route(f"{c.application}@{plan.name}", 1, c.application, hops) for c in chains}
        event = RoutesChanged(1, [*chains], [*routes.values()], [*routes.values()])
        if spec.stages == 1:
            return (
                Instance(configs[0], event, plan.costs, ahead=spec.ahead, jumps=self._jumps, accept=self._accept),
                routes,
            )
        links = LinkTimes(self._links.latency, self._links.bandwidth)
        costs = sized(plan.costs, models[0])
        return PipelineInstance(plan.name, configs, event, costs, links, ahead=spec.ahead, accept=self._accept), routes

    def check(self, place: int, instance: Instance | PipelineInstance) -> None:
        """Raise NoCapacityError if an instance has no page of KV beside its parameters.

        With models on demand it need not have those of all.
        """
        plan = self.plans[place]
        models = placed(self._models, plan.spec.name)
        held = sum(model.own if model.shares else model.parameters for model in models)
        page = models[0].kv_bytes * plan.spec.page_size
        later = not self._loaded and plan.spec.memory and not self._memory
        beside = held if later else 0
        if instance.total_blocks * page <= beside:
            raise NoCapacityError(plan.entry, plan.spec, held // plan.spec.stages, page // plan.spec.stages)

    def pipeline(
        self, hops: Sequence[tuple[int, Hop]], components: Sequence[Component], links: LinkTimes, *, lookahead: bool
    ) -> Made:
        """Return a new instance of the only model on the devices of some instances, by place.

        The layers of a stage are one component, so that a page of KV is one slot of a device.
        """
        (model,) = self._models
        first, last = components[0], components[-1]
        stages = [stage_of(components[max(hop.first, 1) : min(hop.last, len(components) - 1)]) for _, hop in hops]
        chain = Chain(model.name, (Block((first, *stages, last)),), model.context)
        workers = [hop.worker for _, hop in hops]
        name = "+".join(workers)
        route = Route(f"{model.name}@{name}", 1, model.name, hops_of(workers))
        event, configs = RoutesChanged(1, [chain], [route], [route]), []
        for place, hop in hops:
            (config,) = sweep_configs(hop.worker, self.plans[place].spec, self._models, loaded=False)
            configs.append(config if lookahead else replace(config, lookahead=0))
        costs = sized(self.plans[0].costs, model)
        if len(configs) == 1:
            return Instance(configs[0], event, costs, jumps=self._jumps), {model.name: route}
        return PipelineInstance(name, configs, event, costs, links), {model.name: route}


def layered(model: ModelSpec, layers: int, page_size: int) -> tuple[Component, ...]:
    """Return the chain of a model with equal ``layers``, between which it can be cut: embedding, layers and head."""
    layout = KvLayout(1, model.kv_bytes // 4 // layers, "bfloat16", page_size)
    body = model.parameters - model.embedding - model.head
    sizes = [body * (n + 1) // layers - body * n // layers for n in range(layers)]
    kinds = ((Kind.EMBEDDING, model.embedding), *((Kind.ATTENTION, size) for size in sizes), (Kind.HEAD, model.head))
    width = max(1, model.hidden_bytes)
    return tuple(
        Component(_identity(model, depth), kind, size, 1, width, layout if kind is Kind.ATTENTION else None)
        for depth, (kind, size) in enumerate(kinds)
    )


def stage_of(layers: Sequence[Component]) -> Component:
    """Return consecutive layers as one component."""
    layout = replace(layers[0].kv, head_dim=kv_bytes(layers, 0, len(layers)) // 4) if layers[0].kv is not None else None
    identity = hashlib.blake2b(b"".join(layer.id for layer in layers), digest_size=16).digest()
    return replace(layers[0], id=identity, nbytes=nbytes(layers, range(len(layers))), kv=layout)


def chains_of(models: Iterable[ModelSpec], spec: InstanceSpec) -> list[Chain]:
    """Return the chains of models, and behind them the chains with surrogates that draft for them."""
    found = []
    drafting = []
    for model in models:
        own = chain_of(model, spec)
        found.append(own)
        if model.drafts is not None and model.drafts.surrogate:
            parts = [_surrogate(one, model.drafts.surrogate) for one in own.components]
            name = drafting_chain(model.name)
            drafting.append(Chain(name, (Block(tuple(parts)),), own.max_length, drafts_for=model.name))
    if not drafting:
        return found
    cut = cut_blocks({one.application: one.components for one in [*found, *drafting]})
    return [replace(one, blocks=cut[one.application]) for one in [*found, *drafting]]


def _surrogate(one: Component, part: float) -> Component:
    """Return a surrogate of layers, with a part of their bytes. Its KV has their size; what is no layer stays."""
    if one.kind is not Kind.ATTENTION:
        return one
    return replace(one, id=_hash(f"{one.id.hex()}~{part}"), nbytes=max(1, round(one.nbytes * part)))


def chain_of(model: ModelSpec, spec: InstanceSpec) -> Chain:
    """Return a model's chain with all layers of a device as one component.

    Pages have the same bytes then, and one slot instead of one for each layer.
    """
    layout = KvLayout(1, model.kv_bytes // 4 // spec.stages, "bfloat16", spec.page_size)
    body = model.parameters - model.embedding - model.head
    layers = [(Kind.ATTENTION, body * (n + 1) // spec.stages - body * n // spec.stages, layout) for n in range(spec.stages)]
    kinds = ((Kind.EMBEDDING, model.embedding, None), *layers, (Kind.HEAD, model.head, None))
    parts = tuple(
        Component(_identity(model, depth), kind, nbytes, 1, max(1, model.hidden_bytes), kv)
        for depth, (kind, nbytes, kv) in enumerate(kinds)
    )
    if model.own:
        deltas = [model.own * (n + 1) // spec.stages - model.own * n // spec.stages for n in range(spec.stages)]
        changed = [part.adapted(_hash(f"{model.name}/{n}"), deltas[n]) for n, part in enumerate(parts[1:-1])]
        parts = (parts[0], *changed, parts[-1])
    return Chain(model.name, (Block(parts),), model.context)


def served_applications(scenario: Scenario) -> list[Application]:
    """Return the models as the controller knows them; all their layers on a device are one component."""
    spec = scenario.instances[0]
    return [
        Application(
            model.name, model.name, chain_of(model, spec).components, model.context, span=spec.stages,
            model=model.name, on_demand=model.on_demand, base=model.shares,
        )
        for model in scenario.models
    ]  # fmt: skip


def _identity(model: ModelSpec, depth: int) -> bytes:
    """Return the same identity for a model and the models that share its parameters."""
    return _hash(f"{model.shares or model.name}/{depth}")


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def held_bytes(components: Iterable[Component]) -> int:
    """Return the memory of parameters on one device. Parameters that several models share count once."""
    shared, deltas = dict[bytes, int](), dict[bytes, int]()
    for component in components:
        shared[component.shared] = component.nbytes
        if component.delta:
            deltas[component.delta] = component.delta_nbytes
    return sum(shared.values()) + sum(deltas.values())


def hops_of(devices: Sequence[str]) -> tuple[Hop, ...]:
    """Return the hops of a pipeline. The first device has the embedding, the last one the head."""
    last = len(devices) - 1
    return tuple(Hop(name, n + (n > 0), n + 2 + (n == last)) for n, name in enumerate(devices))


def sweep_configs(name: str, spec: InstanceSpec, models: Sequence[ModelSpec], *, loaded: bool = True) -> list[SweepConfig]:
    """Return the configurations of an instance's devices. ``blocks`` are mapped all at once.

    ``loaded``: parameters of all models have their memory; otherwise all of it is there for what is loaded.
    """
    found, names = [], spec.devices(name)
    chains = chains_of(models, spec)
    for n, hop in enumerate(hops_of([""] * spec.stages)):
        parts = [component for chain in chains for component in chain.components[hop.first : hop.last]]
        held = held_bytes(parts) if loaded else 0
        budget, chunk = spec.memory - held, spec.memory_chunk
        if spec.blocks:
            budget = chunk = spec.blocks * models[0].kv_bytes // spec.stages * spec.page_size
        found.append(
            SweepConfig(
                worker=names[n],
                numerics="simulated",
                budget=max(budget, 0),
                slot_unit=1,
                granule=1,
                memory_chunk=chunk,
                page_size=spec.page_size,
                chunk_size=spec.chunk_size,
                sweep_tokens=spec.sweep_tokens,
                max_rows=spec.max_rows,
                prefix_cache=spec.prefix_cache,
                class_ageing=spec.class_ageing,
            )
        )
    return found


def sized(costs: Coefficients, model: ModelSpec) -> Coefficients:
    """Return coefficients with the sizes of their model; each device of a pipeline has a part of it."""
    if costs.parameters:
        return costs
    return replace(costs, parameters=float(model.parameters - model.embedding), kv=float(model.kv_bytes))
