"""The calls about settings, modes, contexts and the server itself, one function each, named in its docstring."""

from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from fluvial.registry import errors
from fluvial.registry.model import names
from fluvial.registry.model.commands import DeleteConfig, DeleteContext, DeleteMode, SetConfig, SetMode
from fluvial.registry.service import replies, requests
from fluvial.registry.service.handlers import principal_of, registry_of
from fluvial.registry.service.replies import Reply


def _scope(request: Request) -> str | None:
    return requests.scope_name(request.path_params["subject"]) if "subject" in request.path_params else None


async def get_config(request: Request) -> Response:
    """GET /config and /config/{subject}"""
    state, subject = registry_of(request).state, _scope(request)
    in_scope = requests.flag(request, "defaultToGlobal")
    settings = state.settings.config_in_scope(subject) if in_scope else state.settings.config(subject)
    if settings is None:
        raise errors.config_not_found(str(subject))
    return Reply(replies.config(settings))


async def put_config(request: Request) -> Response:
    """PUT /config and /config/{subject}"""
    command = SetConfig(subject=_scope(request), settings=await requests.settings(request))
    settings = await registry_of(request).apply(command, principal=principal_of(request), action="configure")
    return Reply(replies.config(settings, level_name="compatibility"))


async def delete_config(request: Request) -> Response:
    """DELETE /config and /config/{subject}"""
    command = DeleteConfig(subject=_scope(request))
    settings = await registry_of(request).apply(command, principal=principal_of(request), action="configure")
    return Reply(replies.config(settings))


async def get_mode(request: Request) -> Response:
    """GET /mode and /mode/{subject}"""
    state, subject = registry_of(request).state, _scope(request)
    in_scope = requests.flag(request, "defaultToGlobal")
    mode = state.settings.mode_in_scope(subject) if in_scope else state.settings.mode(subject)
    if mode is None:
        raise errors.mode_not_found(str(subject))
    return Reply({"mode": mode})


async def put_mode(request: Request) -> Response:
    """PUT /mode and /mode/{subject}"""
    mode = await requests.mode(request)
    command = SetMode(subject=_scope(request), mode=mode, force=requests.flag(request, "force"))
    await registry_of(request).apply(command, principal=principal_of(request), action="set_mode")
    return Reply({"mode": mode})


async def delete_mode(request: Request) -> Response:
    """DELETE /mode and /mode/{subject}"""
    command = DeleteMode(subject=_scope(request), recursive=requests.flag(request, "recursive"))
    return Reply(
        {"mode": await registry_of(request).apply(command, principal=principal_of(request), action="set_mode")}
    )


async def list_contexts(request: Request) -> Response:
    """GET /contexts"""
    prefix = request.query_params.get("contextPrefix", "")
    found = [each for each in registry_of(request).state.contexts() if each.startswith(prefix)]
    return Reply(requests.page(request, found))


async def delete_context(request: Request) -> Response:
    """DELETE /contexts/{context}"""
    try:
        context = names.context_named(unquote(request.path_params["context"]))
    except ValueError as error:
        raise errors.invalid_request(str(error)) from None
    command = DeleteContext(subject=names.joined(context, ""))
    await registry_of(request).apply(command, principal=principal_of(request), action="delete")
    return Response(status_code=204)


async def server_version(request: Request) -> Response:
    """GET /v1/metadata/version"""
    from importlib.metadata import version

    return Reply({"version": version("fluvial"), "commitId": ""})


async def cluster_id(request: Request) -> Response:
    """GET /v1/metadata/id"""
    clusters = {"kafka-cluster": request.app.state.cluster_id(), "schema-registry-cluster": "schema-registry"}
    return Reply({"scope": {"path": [], "clusters": clusters}})
