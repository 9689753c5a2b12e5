"""Applications actor: adds and removes applications while the cluster serves.

Opens and hashes checkpoints and hands them to the controller, which keeps the state of the additions; this actor owns
nothing that outlasts a request. One checkpoint is read at a time. If a gateway dies, the additions that it asked for
continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from ..gpu.errors import CheckpointError
from ..gpu.weights.adapter import open_adapter
from ..gpu.weights.checkpoint import Checkpoint
from ..policies.adaptive.speculation import drafting_chain
from ..policies.cluster.adapter_base import WholeModel
from ..policies.cluster.application_life import model_of
from ..policies.control.events import Application
from ..policies.drafts.choice import absent_drafters
from ..policies.model.tier_choice import auto_id, family_of_auto, is_answered
from ..policies.requests.load_failure import without_folders
from ..policies.requests.refusal import Refusal, RequestRefused
from ..runtime.actor.actor import Actor
from ..runtime.actor.endpoint import endpoint
from ..runtime.base.errors import ActorDied, DeadlineExceeded, RemoteError
from ..zoo.source import open_source
from .app_roots import check_name, folder_below
from .changes_file import ChangesFile
from .checkpoints import application_of, check_drafts, located, stored_base, with_tiers
from .controller.actor import Controller
from .further_applications import adapter_named, base_of, roots_of
from .gateway.port import ApplicationView, NewApplication, RefusedChange, RemovalView
from .settings.errors import SettingsError
from .settings.settings import Settings
from .sizing import WorkerLimits, check_model
from .speculation import chains_beside, hidden_applications, hidden_chains
from .variants import check_adaptive, may_vary, variants_of

log = logging.getLogger("blockwright.applications")
LONGEST_WAIT = 600.0  # longest time in seconds that a caller waits for an application
AFTER_GRACE = 10.0  # seconds for the end of requests and the unloading of blocks
_WHY = {"Conflict": Refusal.CONFLICT, "LookupError": Refusal.UNKNOWN_MODEL}  # errors that the controller raises


def _own(new: NewApplication) -> dict[str, Any]:
    """Return the fields that an application takes over from the request that created it."""
    return {"defaults": new.defaults, "on_demand": new.on_demand}


def _tell_refusal(name: str, task: asyncio.Task[ApplicationView | RefusedChange]) -> None:
    """Log a refusal whose caller no longer waits."""
    if not task.cancelled() and task.exception() is None and isinstance(answer := task.result(), RefusedChange):
        log.warning("model %s is not added: %s", name, answer.message)


def _of_family(tier: str, family: str, change: str, remedy: str) -> str:
    """Return the sentence on a change of a single tier."""
    return f"{tier} is a tier of {family}, and a family {change} as a whole; {remedy} {family}"


def _chooses(chosen: str, remedy: str) -> str:
    """Return the sentence on an id that chooses among tiers."""
    return f"{chosen} chooses among the tiers of {family_of_auto(chosen)}; {remedy}"


def _check_tiers(
    new: NewApplication, tiers: Sequence[Application], before: Mapping[str, WholeModel], served: Collection[str]
) -> None:
    """Raise RequestRefused if a served model outside the family has the id of a tier to add, or the id that chooses.

    ``before``: the whole models by id. ``served``: the ids of all models, adapters as well.
    """
    if tiers and (chosen := auto_id(new.name)) in served:
        message = _chooses(chosen, "another model is served under that id, remove that one first")
        raise RequestRefused(Refusal.CONFLICT, message, param="name")
    for tier in tiers:
        known = before.get(tier.served_as)
        if known is not None and known.family != new.name:
            message = f"{tier.served_as} is a tier of {new.name}, and another model that is served; remove that one first"
            raise RequestRefused(Refusal.CONFLICT, message, param="name")


class Applications(Actor):
    """Applications actor (see the module).

    ``limits`` are the limits that the workers were started with. ``controller`` is its address. ``held`` has the checkpoint
    of each served application; it cannot be removed from a zoo until the controller has forgotten the application.
    """

    def __init__(
        self, settings: Settings, limits: WorkerLimits, controller: str, held: dict[str, Checkpoint] | None = None
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._controller = controller
        self._held = {} if held is None else held
        self._drafting = {model_of(name) for name in self._held}  # models of the start, and the chains that drafted for them
        self._watched: dict[str, asyncio.Task[None]] = {}  # applications whose end releases their entry of ``_held``
        self._reading = asyncio.Lock()
        self._file = ChangesFile.of(settings.models)
        self._writing = asyncio.Lock()
        self._varying = asyncio.Lock()
        self._removed: set[str] = set()  # adapters of the folder that must not be found there any more
        self._adding: dict[NewApplication, asyncio.Task[ApplicationView | RefusedChange]] = {}
        self._bases: dict[NewApplication, WholeModel | None] = {}  # of the additions that go on: the model each is put on

    async def on_start(self) -> None:
        if self._file is not None:
            self._removed.update((await asyncio.to_thread(self._file.read)).removed)

    async def on_stop(self) -> None:
        tasks = [*self._adding.values(), *self._watched.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @endpoint(concurrent=True)
    async def add(self, new: NewApplication) -> ApplicationView | RefusedChange:
        """Add an application: see ``GatewayPort.add_application``. Equal concurrent requests get the same answer."""
        wait, new = new.wait, dataclasses.replace(new, wait=0.0)  # the addition is the same whatever the caller's wait
        task = self._adding.get(new)
        if task is None:
            task = asyncio.create_task(self._add(new), context=contextvars.Context())  # without the caller's deadline
            self._adding[new] = task
            task.add_done_callback(lambda _: (self._adding.pop(new), self._bases.pop(new, None)))
        done, _ = await asyncio.wait({task}, timeout=min(wait, LONGEST_WAIT))
        if done:
            return task.result()
        task.add_done_callback(partial(_tell_refusal, new.name))
        base = self._bases.get(new)
        return ApplicationView(new.name, new.path, False, 0, 0, 0, base.model if base is not None else "")

    @endpoint(concurrent=True)
    async def find(self, name: str) -> bool | RefusedChange:
        """Find an application: see ``GatewayPort.find_application``. One that an operator removed is not found."""
        new = await asyncio.to_thread(adapter_named, self._settings.models, name) if name not in self._removed else None
        if new is None:
            return False
        answer = await self.add(dataclasses.replace(new, wait=LONGEST_WAIT))
        if not isinstance(answer, RefusedChange):
            return True
        log.warning("adapter %s cannot be served: %s", name, answer.message)
        # the requesting client must not see paths, nor other models' names
        why = without_folders(answer.message.replace(new.path, name), [])
        if answer.param == "base":
            why = f"its base is not known; the operator of the server can name it (setting bases.{name})"
        return RefusedChange(Refusal.UNKNOWN_MODEL, f"model {name!r} cannot be served: {why}", "model")

    @endpoint(concurrent=True)
    async def remove(self, name: str, grace: float, default: str = "") -> RemovalView | RefusedChange:
        """Remove an application: see ``GatewayPort.remove_application``."""
        controller = self.node.ref(self._controller, Controller)
        try:
            families = {one.model: one.family for one in await controller.wholes()}
            if family := families.get(name, ""):
                return RefusedChange(Refusal.CONFLICT, _of_family(name, family, "goes", "remove"), "name")
            if name not in families and is_answered(name, families):
                return RefusedChange(Refusal.CONFLICT, _chooses(name, f"remove {family_of_auto(name)}"), "name")
            applications, view = await controller.retire(name, grace, default)
            applications = [*applications, *await self._end_hidden(name, grace)]
            gone = {name, *(tier for tier, family in families.items() if family == name)}
            view = dataclasses.replace(view, drafts=self._end_drafts(gone))
            log.info("model %s takes no new requests and is removed", name)
            for application in applications:
                self._watch(application)
            self._removed.add(name)
            await self._keep(lambda file: file.remove(name, default))
            await asyncio.gather(*(controller.removed(one, timeout=grace + AFTER_GRACE) for one in applications))
        except DeadlineExceeded:
            return view
        except RemoteError as error:
            return RefusedChange(_WHY.get(error.kind, Refusal.INVALID), error.text, "default" if default else "name")
        for application in applications:
            await self._release(application)
        return dataclasses.replace(view, gone=True)

    async def _end_hidden(self, model: str, grace: float, besides: Collection[str] = ()) -> list[str]:
        """Remove the chains that draft or guess for a model, without ``besides``; return their names."""
        controller, names = self.node.ref(self._controller, Controller), list[str]()
        served = {one.served_as for one in await controller.served() if one.drafts_for}
        for id in hidden_chains(model):
            if id in served and id not in besides:
                with contextlib.suppress(RemoteError):  # it is being replaced
                    names += (await controller.retire(id, grace, "", hidden=True))[0]
        return names

    def _end_drafts(self, gone: Collection[str]) -> tuple[str, ...]:
        """Return, and log, a sentence for each entry of the setting ``drafts`` that names a model which is gone."""
        sentences = absent_drafters(self._settings.drafting.drafts, lambda model: model in gone)
        for sentence in sentences:
            log.warning("%s", sentence)
        return tuple(sentences)

    async def _keep(self, change: Callable[[ChangesFile], None]) -> None:
        """Write a change into the file, if there is one. If writing fails, the change still holds for this run."""
        if self._file is None:
            return
        async with self._writing:
            try:
                await asyncio.to_thread(change, self._file)
            except OSError as error:
                reason = error.strerror or error
                log.warning("%s cannot be written (%s); the change is lost with the next start", self._file.path, reason)

    def _watch(self, application: str) -> None:
        """Release the checkpoint once the controller has forgotten the application.

        This happens however late that is, and whether or not a caller still waits.
        """
        if application not in self._watched:
            task = asyncio.create_task(self._until_removed(application), context=contextvars.Context())
            self._watched[application] = task
            task.add_done_callback(lambda _: self._watched.pop(application))

    async def _until_removed(self, application: str) -> None:
        controller, removed = self.node.ref(self._controller, Controller), False
        while not removed:
            try:
                await controller.removed(application, timeout=LONGEST_WAIT)
            except DeadlineExceeded:
                continue
            except ActorDied:
                return  # without the controller there is no cluster
            removed = True
        await self._release(application)

    async def _release(self, application: str) -> None:
        """Let go of the checkpoint of an application that is gone, and of the variants with its blocks."""
        checkpoint = self._held.pop(application, None)
        if checkpoint is not None:
            await self._vary([checkpoint])

    async def _add(self, new: NewApplication) -> ApplicationView | RefusedChange:
        controller, before = self.node.ref(self._controller, Controller), dict[str, WholeModel]()
        names: list[str] = []  # of the applications that this addition has begun
        try:
            check_name(new.name)
            before = {one.model: one for one in await controller.wholes()}
            if (served := before.get(new.name)) is not None and served.family:
                message = _of_family(new.name, served.family, "is replaced", "replace")
                return RefusedChange(Refusal.CONFLICT, message, "name")
            if new.name not in before and is_answered(new.name, {one.model: one.family for one in before.values()}):
                return RefusedChange(Refusal.CONFLICT, _chooses(new.name, "choose another name"), "name")
            opened = await self._read(new, [*before.values()], await controller.crowded())
            beside = await asyncio.to_thread(self._beside, *opened[0])
            served_now = {*before, *map(model_of, self._held)}
            _check_tiers(new, [application for _, application in opened[1:]], before, served_now)
            for checkpoint, application in opened:
                names.append(await self._begin(new, checkpoint, application, before))
        except RequestRefused as refused:
            return RefusedChange(refused.why, refused.message, refused.param)
        except (CheckpointError, SettingsError, OSError) as error:
            return RefusedChange(Refusal.INVALID, str(error), "path")
        except RemoteError as error:
            if names:
                await self._undo(new, before)
            return RefusedChange(_WHY.get(error.kind, Refusal.INVALID), error.text, "name" if error.kind in _WHY else "path")
        for name, (_, application) in zip(names, opened, strict=True):
            try:
                why = await controller.settled(name, timeout=LONGEST_WAIT)
            except DeadlineExceeded:
                continue
            if why:
                log.warning("model %s cannot be served: %s", application.served_as, why)
                await self._undo(new, before)
                message = f"{application.served_as} from {application.checkpoint} cannot be served: {why}"
                return RefusedChange(Refusal.INVALID, message, "path")
        if refused_change := await self._speculate(new, dataclasses.replace(opened[0][1], name=names[0]), beside):
            await self._undo(new, before)
            return refused_change
        await self._vary([checkpoint for checkpoint, _ in opened])
        if new.replace:
            await self._end_tiers(before, {application.served_as for _, application in opened}, new.name)
        view: ApplicationView | None = await controller.application(names[0])
        if view is None:
            await self._end_hidden(new.name, 0.0)
            return RefusedChange(Refusal.CONFLICT, f"model {new.name!r} was removed while it was added", "name")
        if not new.on_demand:  # an adapter found in the folder will be found there again
            self._removed.discard(new.name)
            put_on = self._bases.get(new)
            await self._keep(lambda file: file.add(new, put_on))
        if new.replace:  # the replaced one is served by the controller, so the controller knows when it ends
            for held in self._held:
                self._watch(held)
        on = f" on {view.base}" if view.base else ""
        log.info("model %s from %s%s: %s", new.name, view.checkpoint, on, "ready" if view.ready else "loading")
        return view

    async def _vary(self, changed: Sequence[Checkpoint]) -> None:
        """Have the variants that the served models allow serve, after models with these checkpoints have come or gone."""
        if not any(may_vary(self._settings, one) for one in changed):
            return
        controller = self.node.ref(self._controller, Controller)
        async with self._varying:
            served = await controller.served()
            held, dtype = dict(self._held), self._limits.dtype
            try:
                variants = await asyncio.to_thread(variants_of, held, served, self._settings, dtype)
            except (CheckpointError, OSError) as error:
                log.warning("variants stay as they are: %s", error)
                return
            await controller.vary(variants)

    def _beside(self, checkpoint: Checkpoint, application: Application) -> dict[str, Checkpoint]:
        """Return the chains that are to draft or guess for an application that is added, by id. Raises SettingsError.

        Without a wish in the settings, only a model that had some when the server started has them.
        """
        model = application.served_as
        by_default = drafting_chain(model) in self._drafting and not application.on_demand
        return chains_beside(model, self._settings, {model: checkpoint}, by_default=by_default)

    async def _speculate(
        self, new: NewApplication, own: Application, beside: Mapping[str, Checkpoint]
    ) -> RefusedChange | None:
        """Have the chains that draft or guess for a new version of a model serve, and end those of the one before.

        Return the refusal if they cannot serve, and a setting asks for them, and the model was not served before.
        """
        controller, grace = self.node.ref(self._controller, Controller), self._settings.faults.drain_timeout
        try:
            served = {one.served_as for one in await controller.served() if one.drafts_for}
            if not (beside or served):
                return None
            made = await asyncio.to_thread(hidden_applications, own, beside, self._settings, self._limits.dtype)
            for checkpoint, application in made:
                name = await controller.add(application, replace=application.served_as in served, grace=grace)
                self._held.setdefault(name, checkpoint)
                self._watch(name)
                if why := await controller.settled(name, timeout=LONGEST_WAIT):
                    raise CheckpointError(why)
            for name in await self._end_hidden(new.name, grace, besides=beside):
                self._watch(name)
        except DeadlineExceeded:
            log.info("the chains that draft for %s are still loading", new.name)
        except (RemoteError, CheckpointError, SettingsError, OSError) as error:
            message = f"the chains that speculate for {new.name} cannot be served: {getattr(error, 'text', error)}"
            if new.name in self._settings.drafting.speculate and not new.replace:
                return RefusedChange(Refusal.INVALID, f"speculate.{new.name} is set, but {message}", "path")
            log.warning("%s", message)
        return None

    async def _begin(
        self, new: NewApplication, checkpoint: Checkpoint, application: Application, before: Mapping[str, WholeModel]
    ) -> str:
        """Have the controller begin to serve an application or a tier; return its name."""
        controller = self.node.ref(self._controller, Controller)
        replace = new.replace and (not application.family or application.served_as in before)
        name: str = await controller.add(application, replace=replace, grace=self._settings.faults.drain_timeout)
        self._held.setdefault(name, checkpoint)  # before a worker reads it, and whatever happens to the caller
        self._watch(name)
        return name

    async def _undo(self, new: NewApplication, before: Mapping[str, WholeModel]) -> None:
        """Remove what an addition has begun if a part of it failed, unless it replaces a model."""
        if new.name in before or new.replace:
            return
        with contextlib.suppress(RemoteError):  # nothing of it is left
            await self.node.ref(self._controller, Controller).retire(new.name, 0.0)
            await self._end_hidden(new.name, 0.0)

    async def _end_tiers(self, before: Mapping[str, WholeModel], now: Collection[str], family: str) -> None:
        """Remove the tiers of a replaced family that the new version lacks."""
        controller = self.node.ref(self._controller, Controller)
        for one in before.values():
            if one.family == family and one.model not in now:
                with contextlib.suppress(RemoteError):  # gone already
                    await controller.retire(one.model, self._settings.faults.drain_timeout)
                    self._end_drafts({one.model})

    async def _read(
        self, new: NewApplication, wholes: list[WholeModel], crowded: str
    ) -> list[tuple[Checkpoint, Application]]:
        """Open, check and hash a checkpoint, off the event loop. Of a family the top comes first, then the tiers."""
        async with self._reading:
            return await asyncio.to_thread(self._hash, new, wholes, crowded)

    def _hash(self, new: NewApplication, wholes: list[WholeModel], crowded: str) -> list[tuple[Checkpoint, Application]]:
        settings, limits = self._settings, self._limits
        roots = roots_of(settings.models)
        base = base_of(new, roots, wholes)
        self._bases[new] = base
        folder = folder_below(roots, new.path)
        held = next((c for c in self._held.values() if base and located(c) == base.checkpoint and c.source == c.path), None)
        checkpoint = open_adapter(folder, held) if held else open_source(folder, base.checkpoint if base else "")
        length = check_model(settings, limits, new.name, checkpoint.config, crowded)
        span = settings.worker.stages(new.name)
        name = base.model if base is not None else stored_base(checkpoint, wholes) if checkpoint.deltas else ""
        whole, families = with_tiers({new.name: checkpoint}, settings.models)
        if not new.on_demand:  # for an adapter found in the folder, the setting gives way; its requests say why
            there = {model_of(one): opened for one, opened in [*self._held.items()]}
            check_adaptive(settings, {**there, **whole}, whole)
            self._check_drafts(whole, {new.name: name}, families, wholes)
        specs = {model: one.specs(settings.worker_memory.page_size, limits.dtype) for model, one in whole.items()}
        folder_below(roots, str(checkpoint.source))  # checked again: it may have become a link while it was read
        made = []
        for model, one in whole.items():
            found = application_of(model, one, specs[model], length, span, name, families.get(model, ""))
            made.append((one, dataclasses.replace(found, model=model, created=int(time.time()), **_own(new))))
        return made

    def _check_drafts(
        self,
        added: Mapping[str, Checkpoint],
        bases: Mapping[str, str],
        families: Mapping[str, str],
        wholes: list[WholeModel],
    ) -> None:
        """Raise SettingsError if the setting ``drafts`` pairs an added model with one that cannot draft for it.

        ``bases`` and ``families``: of the added models. ``wholes``: the whole models that are served.
        """
        served = {one.model: one.family for one in wholes if one.served and one.family not in added}
        held = {model_of(name): one for name, one in [*self._held.items()]}
        there = {name: one for name, one in held.items() if name in served or one.source != one.path}
        at = {one.checkpoint: one.model for one in wholes}
        under = {name: at.get(one.beneath, "") for name, one in there.items() if one.source != one.path}
        check_drafts(self._settings, {**there, **added}, {**under, **bases}, {**served, **families}, added)
