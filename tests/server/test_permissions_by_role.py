"""Every public method is called as every role of docs/operate/permissions.md: allowed, or denied with a typed error."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack

import pytest

import glidemq_py
from glidemq_py import BulkAddError, records
from glidemq_py.errors import PermissionDeniedError
from glidemq_py.testing import RespClient
from tests.inside import areas, assemble
from tests.server.permission_calls import CALLS, Denied, Place
from tests.server.test_permissions import PAGE as RULES_PAGE
from tests.server.test_permissions import RULES, UNIMPORTANT, as_user
from tests.server.worker_support import StartServer
from tools.generate_permissions import PAGE, page
from tools.permissions import LOCAL, METHODS, NEEDS_SEARCH_MODULE, ROLES

CONCURRENT = 8
OPTIONAL = {"function|list", "function|delete", "psubscribe", "publish", *UNIMPORTANT}
"""Commands that clients can do without, as without the channels of wake-ups."""
ALLOWED = {
    f"{kind}.{name}" if kind else name: frozenset(roles.split())
    for roles, methods in METHODS.items()
    for kind, names in methods.items()
    for name in names
}


def public_methods() -> set[str]:
    """Return the public methods of the classes that talk to the server, and the coroutine functions of the package."""
    found = set[str]()
    for name in [*glidemq_py.__all__, *records.__all__]:
        thing = getattr(glidemq_py if name in glidemq_py.__all__ else records, name)
        if inspect.iscoroutinefunction(thing):
            found.add(name)
        elif inspect.isclass(thing) and not issubclass(thing, BaseException):
            methods = {each: value for each, value in inspect.getmembers(thing, inspect.isfunction) if each[0] != "_"}
            if any(is_async(value) for value in methods.values()):
                found |= {f"{name}.{each}" for each in methods}
    for area, cls in areas(glidemq_py.Queue("q")).items():
        found |= {f"Queue.{area}.{each}" for each, _ in inspect.getmembers(cls, inspect.isfunction) if each[0] != "_"}
    return found


def is_async(function: Callable[..., object]) -> bool:
    inner = inspect.unwrap(function)
    return inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)


def test_every_public_method_has_its_roles():
    methods = public_methods()
    assert len(methods) > 150
    known = ALLOWED.keys() | LOCAL | NEEDS_SEARCH_MODULE
    assert methods - known == set(), "add them to tools/permissions.py and tests/server/permission_calls.py"
    plain = {
        name for name in known if name.isidentifier() or (" " not in name and "(" not in name and name[0].isupper())
    }
    assert plain - methods == set(), "these do not exist"


def test_every_method_with_roles_has_a_call():
    assert set(CALLS) == set(ALLOWED)


def test_page_has_the_current_table():
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "run python -m tools.generate_permissions"


class Server:
    """A server with the library; each call has a user of its own, so that its denials can be told apart."""

    def __init__(self, url: str, client: RespClient, rules: Mapping[str, list[str]] = RULES):
        self._url, self._client, self._rules = url, client, rules
        self.users: list[str] = []
        self._denied = defaultdict[str, set[str]](set)
        client.execute_everywhere("CONFIG", "SET", "acllog-max-len", 100_000)
        client.execute_everywhere("FUNCTION", "LOAD", "REPLACE", assemble().code)

    def denied(self, user: str) -> set[str]:
        """Return the commands and keys that the server has denied to a user."""
        if self._url.count(":") > 2:  # a cluster, with several addresses
            logs = self._client.execute_everywhere("ACL", "LOG", 100_000)
        else:
            # Read and emptied in one transaction: thousands of entries of earlier calls are not read again.
            for command in (("MULTI",), ("ACL", "LOG", 100_000), ("ACL", "LOG", "RESET")):
                self._client.execute(*command)
            logs = self._client.execute("EXEC")[:1]
        for each in (each for log in logs for each in log):
            entry = dict(zip(each[::2], each[1::2], strict=True))
            self._denied[entry["username"]].add(str(entry["object"]))
        return {each for each in self._denied[user] - OPTIONAL if not each.startswith("glidemq_py:wake:")}

    async def call(self, name: str, role: str) -> Exception | None:
        """Call a method as a role; return the error of a denied permission."""
        queue = f"q{len(self.users)}"
        self.users.append(user := f"{role}-{queue}")
        self._client.execute_everywhere("ACL", "SETUSER", user, "reset", "on", ">SECRET", *self._rules[role])
        async with AsyncExitStack() as stack:
            place = Place(
                queue,
                as_user(self._url, user),
                f"{self._url}?share_clients=false",
                lambda: bool(self.denied(user)),
                stack,
            )
            error: Exception | None = None
            try:
                await asyncio.wait_for(CALLS[name](await place.open()), 120)
            except BulkAddError as errors:
                error = next(each for each in errors.results if isinstance(each, Exception))
            except (PermissionDeniedError, Denied) as denied:
                error = denied
            missing = self.denied(user)
        if error is None:
            assert missing == set(), f"{name} as {role} was denied {missing}, and raised nothing"
        elif isinstance(error, PermissionDeniedError):
            assert error.permission
            assert f"{error.permission}'" in str(error)
            assert "permissions.md" in str(error)
        return error

    async def call_all(self, calls: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Exception | None]:
        """Call methods as roles; of methods with the same call, only the first per role."""
        slots = asyncio.Semaphore(CONCURRENT)
        found: dict[tuple[str, str], Exception | None] = {}

        async def one(key: tuple[str, str]):
            async with slots:
                try:
                    found[key] = await self.call(*key)
                except Exception as error:
                    raise AssertionError(f"{key[0]} as {key[1]}") from error

        distinct = {(CALLS[name], role): (name, role) for name, role in reversed(calls)}
        async with asyncio.TaskGroup() as group:
            for key in distinct.values():
                group.create_task(one(key))
        return {(name, role): found[distinct[CALLS[name], role]] for name, role in calls}


@pytest.fixture
def roles(private_server: StartServer, caplog: pytest.LogCaptureFixture) -> Iterator[Server]:
    caplog.set_level(logging.CRITICAL)
    process = private_server()
    with process.client() as client:
        yield Server(process.url, client)


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
async def test_a_role_may_call_what_the_table_says_and_no_more(roles: Server, role: str):
    errors = await roles.call_all([(name, role) for name in ALLOWED])
    assert len(errors) > 150
    found = defaultdict[bool, set[str]](set)
    for (name, _), error in errors.items():
        found[error is None].add(name)
    assert found[True] == {name for name, allowed in ALLOWED.items() if role in allowed}


SHORT = re.findall(r"The shorter `(.*?)`", RULES_PAGE)[0].split()
IN_A_CLUSTER = ["+ping", "+cluster|slots", "+readonly", "+asking"]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["one server", "cluster"])
async def test_an_application_may_call_everything(
    request: pytest.FixtureRequest, private_server: StartServer, place: str
):
    """With the shorter rule on one server, with the long one in a cluster."""
    url = private_server().url if place == "one server" else request.getfixturevalue("cluster_url")
    keys = [word for word in RULES["app"] if word[0] == "~"]
    rules = {"one server": [*keys, *SHORT], "cluster": [*RULES["app"], *IN_A_CLUSTER]}
    with RespClient.from_url(url) as client:
        server = Server(url, client, {"app": rules[place]})
        try:
            errors = await server.call_all([(name, "app") for name, allowed in ALLOWED.items() if "app" in allowed])
        finally:
            client.execute_everywhere("ACL", "DELUSER", *server.users)
    assert set(errors.values()) == {None}


def test_an_observer_can_write_nothing(resp: RespClient):
    """A function runs with its caller's permissions, so this covers all functions."""
    allowed = [word[1:] for word in RULES["observer"] if word.startswith("+")]
    details = {each[0]: each[2] for each in resp.execute("COMMAND", "INFO", *allowed)}
    assert [name for name, flags in details.items() if "write" in flags] == []
    assert len(details) == len(allowed)
