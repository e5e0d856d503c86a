"""The pages: `/docs` with the OpenAPI document, and the lab, each made of files that lie here."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from service.front.errors import NotFound
from service.front.routes.answers import reply
from service.front.routes.state import state_of
from service.front.schemas import MAX_COPIES
from service.front.settings import Settings, model_name
from service.modes import AUTO
from service.workloads import Workload

DOCS_FOLDER, LAB_FOLDER = (Path(__file__).parents[1] / name for name in ("swagger", "lab"))

LAB_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Scripts and styles of this service alone, and none within the page."""

DOCS_POLICY = LAB_POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
"""The page's own styles are set by its script."""

VIEWS = tuple(path.stem for path in sorted((LAB_FOLDER / "views").glob("*.js")))

DESCRIPTIONS = tomllib.loads(Path(__file__).with_name("descriptions.toml").read_text("utf-8"))
TAGS: dict[str, str] = DESCRIPTIONS.pop("tags")

EXAMPLES_FILE = Path(__file__).with_name("examples.json")
"""Answers of a service by operation id and media type; `tests.support.openapi_examples` records them.

What a module answers otherwise than a language model stands under `forward/` and the operation id.
"""

router = APIRouter(include_in_schema=False)


@router.get("/openapi.json")
async def document(request: Request) -> Response:
    """The OpenAPI document. The first call makes it, which takes long: not on the event loop."""
    app: FastAPI = request.app
    made = app.openapi_schema
    return reply(made or await asyncio.to_thread(describe, app, state_of(request).settings))


_docs, _lab = StaticFiles(directory=DOCS_FOLDER), StaticFiles(directory=LAB_FOLDER)


async def _file(files: StaticFiles, path: str, request: Request, policy: str) -> Response:
    """The file, or 304 where the browser has it: it may keep the file, and checks it at each use."""
    answer = await files.get_response(path, request.scope)
    answer.headers["Cache-Control"] = "no-cache"
    answer.headers["Content-Security-Policy"] = policy
    answer.headers["Referrer-Policy"] = "no-referrer"
    return answer


@router.get("/docs")
@router.get("/docs/{name}")
async def docs(request: Request) -> Response:
    return await _file(_docs, request.path_params.get("name", "index.html"), request, DOCS_POLICY)


@router.get("/")
@router.get("/lab/files/{path:path}")
async def lab(request: Request) -> Response:
    return await _file(_lab, request.path_params.get("path", "index.html"), request, LAB_POLICY)


@router.get("/lab/{view}")
async def view(view: str, request: Request) -> Response:
    """The lab, at one of its views."""
    if view not in VIEWS:
        raise NotFound(f"no view '{view[:64]}' in the lab; try one of {', '.join(VIEWS)}", param="view")
    return await _file(_lab, "index.html", request, LAB_POLICY)


Schema = dict[str, Any]

FOREIGN_ERRORS = ("HTTPValidationError", "ValidationError")
"""The framework's own shape of a 422, which no route here answers."""


BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def describe(app: FastAPI, settings: Settings) -> Schema:
    """The document, made once. Its schemas refuse what this instance refuses, as far as a schema can say it.

    How many tokens a prompt has, and what fits in the context, only the engine knows.
    """
    if app.openapi_schema is None:
        document: Schema = get_openapi(
            title=app.title,
            version=app.version,
            openapi_version=app.openapi_version,
            description=app.description,
            routes=app.routes,
            servers=[{"url": "/", "description": "This service."}],
            license_info={"name": "Apache 2.0", "identifier": "Apache-2.0"},
        )
        document["security"] = []  # what needs a key says so itself
        limits, modes = _limits(settings), settings.ladder
        model = f"{model_name(settings.model)}:{modes[0]}"
        served: Schema = {"mode": modes[0], "modes": modes[:2], "model": model}
        if not settings.workload.tokens:
            served |= {"batch_size": settings.batch_sizes[0], "phase": settings.workload.main}
        tags: set[str] = set()
        examples = json.loads(EXAMPLES_FILE.read_text(encoding="utf-8"))
        for operation in (one for methods in document["paths"].values() for one in methods.values()):
            _make_exact(operation)
            tags.update(operation["tags"])
            for parameter in operation.get("parameters", ()):
                _narrow(parameter["name"], parameter.get("schema", {}), limits)
                _describe(parameter["in"], parameter["name"], parameter)
            for name, schema in _body(operation).get("properties", {}).items():
                _narrow(name, schema, limits)
                _describe("body", name, schema)
            for example in _body(operation).get("examples", ()):
                example.update({name: value for name, value in served.items() if name in example})
            _correct_answers(operation)
            _show_answers(operation, examples, settings.workload)
        for name, schema in document["components"]["schemas"].items():
            for field, of_field in schema.get("properties", {}).items():
                _narrow(field, of_field, {"phase": ("string", {"enum": list(settings.workload.phases)})})
                _describe(name, field, of_field)
        for name in FOREIGN_ERRORS:
            document["components"]["schemas"].pop(name, None)
        document["tags"] = [{"name": name, "description": TAGS[name]} for name in TAGS if name in tags]
        app.openapi_schema = document
    return app.openapi_schema


def _make_exact(node: Any) -> None:  # noqa: ANN401 - any JSON value
    """Write the bounds of integers as integers: the framework makes them floats, which round from 2**53."""
    values = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for value in values:
        _make_exact(value)
    if isinstance(node, dict) and node.get("type") == "integer":
        node.update({name: int(node[name]) for name in BOUNDS if isinstance(node.get(name), float)})


def _limits(settings: Settings) -> dict[str, tuple[str, Schema]]:
    """By the name of a parameter or a field: the type that is narrowed, and what that type is narrowed by."""
    modes, most = settings.ladder, settings.batch_sizes[-1]
    models = {"enum": [f"{model_name(settings.model)}:{mode}" for mode in [*modes, AUTO]]}
    workload = settings.workload
    sizes: Schema = {"minimum": 1, "maximum": most} if workload.tokens else {"enum": settings.batch_sizes}
    return {
        "mode": ("string", {"enum": modes}),
        "modes": ("array", {"items": {"type": "string", "enum": modes}, "uniqueItems": True}),
        "model": ("string", models),
        "batch_size": ("integer", sizes),
        "phase": ("string", {"enum": list(workload.phases), "default": workload.main}),
        "prompts": ("array", {"maxItems": most}),
        "prompt": ("array", {"maxItems": most}),
        "n": ("integer", {"maximum": min(most, MAX_COPIES)}),
    }


def _narrow(name: str, schema: Schema, limits: dict[str, tuple[str, Schema]]) -> None:
    """Narrow `schema`, or its forms of the type that is narrowed; a list of token ids is one prompt."""
    kind, narrower = limits.get(name, ("", {}))
    for form in schema.get("anyOf", [schema]):
        if form.get("type") == kind and form.get("items", {}).get("type") != "integer":
            form.update(narrower)


def _describe(owner: str, name: str, schema: Schema) -> None:
    """Say what a field or parameter `name` of `owner` is, unless its schema says it."""
    text = DESCRIPTIONS.get(f"{owner}.{name}", DESCRIPTIONS.get(name))
    if text is not None:
        schema.setdefault("description", text)


def _body(operation: Schema) -> Schema:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema: Schema = content.get("schema", {})
    return schema


def _show_answers(operation: Schema, examples: dict[str, Any], workload: Workload) -> None:
    """Give each form of the answer an example: of this workload, where its answers are recorded apart."""
    name = operation["operationId"]
    own = examples.get(f"{workload.name}/{name}")
    recorded, model = (examples[name], "the model tiny") if own is None else (own, "a module")
    said = f"Answer of a service of {model} on a CPU; long lists and texts are cut."
    for kind, form in operation["responses"]["200"]["content"].items():
        form["examples"] = {"recorded": {"summary": said, "value": recorded[kind]}}


def _correct_answers(operation: Schema) -> None:
    """Declare a 422 in the shape of all errors, where there can be one at all."""
    answers = operation["responses"]
    unreadable = answers.get("422", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if unreadable.get("$ref", "").endswith(f"/{FOREIGN_ERRORS[0]}"):
        unreadable["$ref"] = unreadable["$ref"].replace(FOREIGN_ERRORS[0], "ErrorBody")
        if all(parameter["in"] == "path" for parameter in operation.get("parameters", ())):
            del answers["422"]  # any text is a path
