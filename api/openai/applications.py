"""Endpoints that add, replace and remove models at run time, also in the form of vLLM's adapter endpoints.

A folder must be below a root of the setting ``app_roots``. Every key that may use ``/admin`` may use all of these.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

from aiohttp import web

from ...actors.app_roots import folder_below
from ...actors.further_applications import roots_of
from ...actors.gateway.port import ApplicationView, NewApplication, RemovalView
from ...gpu.errors import CheckpointError
from ...gpu.weights.adapter import is_adapter
from ...policies.binary_size import binary_size
from ...policies.model.tier_choice import family_of_auto
from ...policies.requests.refusal import Refusal, RequestRefused
from ...zoo.source import holds_adapter
from ..answers import AddedAnswer, AppsAnswer, RemovedAnswer
from ..errors import ApiError, bad_request, in_words
from ..http.context import FRONT, IGNORED
from ..named_models import is_named
from ..saving import shared_part
from .bodies import read_fields
from .field_types import Field, Flag, Number, Text
from .foreign_fields import ADDING, LOADING
from .model_defaults import DEFAULTS, checked_defaults
from .refused_fields import ForeignFields
from .request_body import read_body

LONGEST_WAIT = 600.0  # seconds
_PATH = Field("path", Text(4096), "A folder below a root of app_roots.", required=True)
_BASE = Field(
    "base", Text(200), "The served model that an adapter belongs to; default: the one that it names, or the only one."
)
_WAIT = Field(
    "wait", Number(0, LONGEST_WAIT), "Seconds to wait until it is ready; after that the answer is 202.", default=60.0
)
ADD_FIELDS = (Field("name", Text(200), "The model id to serve it as.", required=True), _PATH, _BASE, _WAIT, *DEFAULTS)
REPLACE_FIELDS = (_PATH, _BASE, _WAIT, *DEFAULTS)
LOAD_FIELDS = (
    Field("lora_name", Text(200), "The model id to serve it as.", required=True),
    Field("lora_path", Text(4096), "A folder below a root of app_roots.", required=True),
    Field("base_model_name", Text(200), "The served model that it belongs to; default: as for POST /admin/apps."),
    Field("load_inplace", Flag(), "Replace the model of this name, if there is one.", default=False),
)
REMOVE_QUERY = (
    Field("default", Text(200), "The model id that stands for requests without a model from then on; default: as before."),
)
UNLOAD_FIELDS = (Field("lora_name", Text(200), "A model id of /v1/models.", required=True),)
FOREIGN_TO_ADD = ForeignFields(ADDING, ADD_FIELDS)
FOREIGN_TO_LOAD = ForeignFields(LOADING, LOAD_FIELDS)
_THEIRS = {"name": "lora_name", "path": "lora_path", "base": "base_model_name"}  # our names -> vLLM's


async def list_applications(request: web.Request) -> web.Response:
    """List the applications as the controller reports them, without chains that no client can name."""
    view = await request.app[FRONT].port.cluster()
    named = {name: one for name, one in view["applications"].items() if is_named(one)}
    answer: AppsAnswer = {"applications": named, "default": view["default"]}
    return web.json_response(answer)


async def add(request: web.Request) -> web.Response:
    values = await _body(request, ADD_FIELDS, FOREIGN_TO_ADD)
    return _added(await _add(request, NewApplication(**_new(values))))


async def replace(request: web.Request) -> web.Response:
    """Add a new version of a model: new requests go there, and running ones end on the old version."""
    values = await _body(request, REPLACE_FIELDS, FOREIGN_TO_ADD)
    return _added(await _add(request, NewApplication(request.match_info["name"], replace=True, **_new(values))))


async def remove(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    name = request.match_info["name"]
    default = request.query.get("default", "")
    view = await front.port.remove_application(name, front.settings.faults.drain_timeout, default)
    answer: RemovedAnswer = {
        "name": name,
        "state": "removed" if view.gone else "ending",
        "freed": view.freed,
        "adapters": view.adapters,
        "default": view.default if view.answered else None,
        "summary": "; ".join([_follows(name, view), *view.drafts]),
    }
    return web.json_response(answer, status=200 if view.gone else 202)


async def load_adapter(request: web.Request) -> web.Response:
    """Add an adapter (vLLM's endpoint); the answer to success is plain text."""
    values = await _body(request, LOAD_FIELDS, FOREIGN_TO_LOAD)
    new = NewApplication(values["lora_name"], values["lora_path"], values.get("base_model_name", ""))
    in_place = values.get("load_inplace", False)
    with _their_names():
        await _check_adapter(request, new.path)
        try:
            view = await _add(request, dataclasses.replace(new, replace=in_place))
        except RequestRefused as refused:
            if refused.why is not Refusal.UNKNOWN_MODEL or not in_place:
                raise
            view = await _add(request, new)  # there is no model to replace
    on = f" Its base is '{view.base}'." if view.base else ""
    return web.Response(text=f"Success: LoRA adapter '{new.name}' added successfully.{on}")


async def unload_adapter(request: web.Request) -> web.Response:
    """Remove an adapter (vLLM's endpoint); the answer to success is plain text."""
    values = await _body(request, UNLOAD_FIELDS)
    front = request.app[FRONT]
    with _their_names():
        await front.port.remove_application(values["lora_name"], front.settings.faults.drain_timeout)
    return web.Response(text=f"Success: LoRA adapter '{values['lora_name']}' removed successfully.")


async def _check_adapter(request: web.Request, path: str) -> None:
    """Raise a 400 for a whole model: it is not what the client meant, and its memory cost would surprise."""
    folder = await asyncio.to_thread(folder_below, roots_of(request.app[FRONT].settings.models), path)
    try:
        found = await asyncio.to_thread(holds_adapter, folder)
    except CheckpointError as error:
        raise bad_request(str(error), "path") from None
    if not found:
        message = f"{folder} is no adapter: it has no adapter_config.json; add a whole model with POST /admin/apps"
        raise bad_request(message, "path")


@contextlib.contextmanager
def _their_names() -> Iterator[None]:
    """Translate field names in errors to vLLM's."""
    try:
        yield
    except (ApiError, RequestRefused) as raised:
        error = in_words(raised) if isinstance(raised, RequestRefused) else raised
        error.message = error.message.replace("(base, or --base)", "(base_model_name)").replace(
            "replace it (--replace)", "replace it (load_inplace)"
        )
        error.param = _THEIRS.get(error.param or "", error.param)
        raise error from None


async def _body(request: web.Request, fields: tuple[Field, ...], foreign: ForeignFields | None = None) -> dict[str, Any]:
    """Return the fields of a body. An addition by our own endpoint has no unknown ones: they might be misspelt defaults."""
    unknown = "reject" if foreign is FOREIGN_TO_ADD else request.app[FRONT].settings.requests.unknown_fields
    check = partial(read_fields, fields=fields, unknown=unknown, foreign=foreign)
    values, request[IGNORED] = await read_body(request, check)
    return values


def _new(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an addition under the names of ``NewApplication``."""
    own = {one.name for one in DEFAULTS}
    defaults = checked_defaults({name: value for name, value in values.items() if name in own}, "")
    return {name: value for name, value in values.items() if name not in own} | {"defaults": defaults}


async def _add(request: web.Request, new: NewApplication) -> ApplicationView:
    """Add a model after a trial load of its text files: a model with an unreadable tokenizer cannot be served."""
    front = request.app[FRONT]
    folder = await asyncio.to_thread(folder_below, roots_of(front.settings.models), new.path)
    try:
        if is_adapter(folder):
            await front.catalog.try_adapter(folder, new.base)
        else:
            await front.catalog.try_folder(folder)
    except CheckpointError as error:
        raise bad_request(str(error), "path") from None
    return await front.port.add_application(new)


def _added(view: ApplicationView) -> web.Response:
    answer: AddedAnswer = {
        "name": view.id,
        "path": view.checkpoint,
        "state": "ready" if view.ready else "loading",
        "base": view.base or None,
        "max_model_len": view.max_length,
        "bytes": {"own": view.own, "shared": view.shared},
        "summary": _shares(view),
    }
    return web.json_response(answer, status=200 if view.ready else 202)


def _follows(name: str, view: RemovalView) -> str:
    """Return a sentence on the effects of a removal."""
    freed = f"{binary_size(view.freed)} {'freed' if view.gone else 'to be freed'}"
    adapters = f"{view.adapters} adapter{'s keep' if view.adapters > 1 else ' keeps'} its blocks, " if view.adapters else ""
    if view.answered:
        return f"{adapters}{freed}; requests without a model go to {view.default}"
    was = "it was the default: " if view.default == name else ""
    missing = family_of_auto(view.default) or view.default
    return f"{adapters}{freed}; {was}requests without a model are refused until {missing} is added again"


def _shares(view: ApplicationView) -> str:
    if not (total := view.own + view.shared):
        return "what it shares is known when it has been read"
    tiers = f"; tiers: {', '.join(view.tiers)}" if view.tiers else ""
    return f"shares {shared_part(view.shared / total)} of its blocks, +{binary_size(view.own)}{tiers}"
