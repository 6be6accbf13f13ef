"""Tests that requests generated from the OpenAPI document, and their responses, conform to it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from glidemq_py.proxy import create_proxy_app
from glidemq_py.proxy.jobs import ListState
from tests.inside import listed_states
from tests.server.proxy.support import running_proxy

pytestmark = pytest.mark.slow

EXAMPLES = 5
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
SEEN = {route.path for route in create_proxy_app("valkey://127.0.0.1:1").routes}  # type: ignore[attr-defined]
PATHS = sorted(path for path in SEEN if not path.endswith(("/events", "/stream", "/openapi.json")))
"""Endless streams; test_proxy_streams.py tests them."""


@pytest.fixture(scope="module")
def document(glidemq_server: Any) -> Iterator[Any]:
    with running_proxy(glidemq_server.url, prefix="proxied") as (client, _):
        yield schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
@pytest.mark.parametrize("path", PATHS)
def test_requests_and_responses_match_the_document(document: Any, path: str, mode: GenerationMode):
    for found in document.include(path=path).get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
            continue
        answer_to_some(operation, mode, waits=path.endswith("/wait"))


def answer_to_some(operation: Any, mode: GenerationMode, *, waits: bool):
    checks = [*CHECKS, *([negative_data_rejection] if mode is GenerationMode.NEGATIVE else [])]

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def answered(case: Any):
        if waits:
            # There is no worker: do not wait for the timeout of half a minute.
            if mode is GenerationMode.POSITIVE:
                case.body["opts"] = {**case.body.get("opts", {}), "waitTimeout": 1}
                case.call_and_validate(checks=checks)
        else:
            case.call_and_validate(checks=[*checks, not_a_server_error])

    answered()


def test_examples_are_accepted(url: str, queue_name: str):
    with running_proxy(url) as (http, _):
        document = http.get("/openapi.json").json()
        at = {"name": queue_name, "scheduler": "s", "flow": "f"}
        seen = 0
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if "requestBody" not in operation:
                    continue
                body = operation["requestBody"]["content"]["application/json"]
                schema = {**body["schema"], "components": document["components"]}
                jsonschema_rs.validate(schema, body["example"])
                job = http.post(f"/queues/{queue_name}/jobs", json={"name": "n", "opts": {"delay": 90_000}}).json()
                if path.endswith("/wait"):
                    body["example"]["opts"]["waitTimeout"] = 1
                found = http.request(method, path.format(**at, id=job["id"]), json=body["example"])
                wanted = {"wait": (504,), "approve": (400,), "reject": (400,)}.get(path.rpartition("/")[2], (200, 201))
                assert found.status_code in wanted, (path, found.text)
                seen += 1
        assert seen >= 12


def test_every_state_can_be_listed():
    assert get_args(ListState) == tuple(map(str, listed_states()))


def test_every_route_is_in_the_document():
    with running_proxy("valkey://127.0.0.1:1") as (client, _):
        paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == SEEN - {"/openapi.json"}
    names = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(names) == len(set(names))


def test_every_route_is_in_a_transcript():
    folder = Path(__file__).parents[1] / "transcripts" / "proxy"
    text = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.txt"))
    patterns = {path: re.sub(r"\{.*?\}", "[^/ ]+", path) for path in PATHS}
    missing = {path for path, each in patterns.items() if not re.search(rf"(GET|POST|PUT|DELETE) {each}[ ?]", text)}
    assert missing == {"/health"}
