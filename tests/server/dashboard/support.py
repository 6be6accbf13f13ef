"""A dashboard in this process, or as a command, and what a page contains."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from html.parser import HTMLParser
from typing import Any

import httpx

from glidemq_py.dashboard import Dashboard

HERE = "http://localhost"
FROM_HERE = {"origin": HERE}


@contextlib.asynccontextmanager
async def browsing(url: str, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a dashboard in this process."""
    async with Dashboard(url, **options) as dashboard:
        transport = httpx.ASGITransport(dashboard)
        async with httpx.AsyncClient(transport=transport, base_url=HERE, timeout=60) as client:
            yield client


@contextlib.contextmanager
def served(url: str, *arguments: str) -> Iterator[str]:
    """Run the command; yield its address."""
    command = [sys.executable, "-m", "glidemq_py.dashboard", "--url", url, "--port", "0", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                found = re.search(r"running on (http://\S+)", line)
                if found:
                    yield found[1]
                    break
            else:
                raise AssertionError("the command ended without an address")
        finally:
            process.terminate()
            rest = process.stderr.read()
    assert process.returncode in (0, -signal.SIGTERM), rest  # uvicorn repeats the signal after it has ended
    assert "Traceback" not in rest, rest


class Elements(HTMLParser):
    """The elements of a page: names and attributes, in order."""

    def __init__(self, page: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]):
        self.found.append((tag, dict(attrs)))

    def links(self) -> set[str]:
        """Return the addresses of all links."""
        return {attributes["href"] or "" for tag, attributes in self.found if tag == "a" and "href" in attributes}

    def ids(self) -> list[str]:
        """Return the ids of the jobs of a list, in order."""
        return [str(each["value"]) for tag, each in self.found if tag == "input" and each.get("name") == "id"]
