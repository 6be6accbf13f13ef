"""`python -m glidemq_py.library`: manage the function library as an administrator.

    dump    print the code, for FUNCTION LOAD by other means
    load    load the library if it is missing; an existing library is never replaced, and another one is named
    check   print per node whether the library is loaded, and its version; exit code 1 if it, or its code, is missing
            anywhere

Applications load their own library automatically if they have permission. Use this command if they do not, and to
publish the documented library `glidemq` to clients in other languages (``--variant wire``).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TextIO

from glidemq_py._client.library_source import Library, Variant, assemble
from glidemq_py._client.transport import URL_VARIABLE, known_url
from glidemq_py._core.command_line import ArgumentParser
from glidemq_py._core.logs import escape_control
from glidemq_py.errors import GlideMQError, GlideMQValidationError, LibraryError

if TYPE_CHECKING:
    from glidemq_py._client.async_transport import AsyncTransport
    from glidemq_py._client.library_publishing import PublishedLibrary

__all__ = ["WIRE_FUNCTIONS", "main"]

WIRE_FUNCTIONS: Final = frozenset({
    "addFlow", "addJob", "changeDelay", "changePriority", "checkBudget", "checkConcurrency", "clean", "complete",
    "completeAndFetchNext", "completeChild", "dedup", "deferActive", "drain", "fail", "getActiveListJobIds",
    "healListActive", "moveActiveToDelayed", "moveToActive", "moveToWaitingChildren", "nextDue", "pause",
    "popLists", "promote", "promoteJob", "promoteRateLimited", "rateLimit", "rateLimitGroup",
    "rateLimitGroupExternal", "reclaimStalled", "reclaimStalledListJobs", "recordUsageAndCheckBudget",
    "registerParent", "removeJob", "renewLock", "resume", "retryJobs", "revoke", "rpopAndReserve", "searchByName",
    "signal", "suspend", "sweepSuspended", "tryLock", "unlock", "version",
})  # fmt: skip
"""The 45 functions that the documented library must have; a build with fewer is never loaded."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return its exit code: 0 success, 1 missing or failed, 2 invalid command line."""
    parser = _parser()
    given = parser.parse_args(sys.argv[1:] if argv is None else argv)
    library = assemble(Variant(given.variant))
    if given.command == "dump":
        sys.stdout.write(library.code)
        return 0
    try:
        url = known_url(given.url)
        if url is None:
            parser.error(f"no server given: use --url, {URL_VARIABLE}, or glidemq dev")
        return asyncio.run(_load(url, library) if given.command == "load" else _check(url, library))
    except GlideMQValidationError as error:
        parser.reject(str(error))  # contains the redacted URL
    except GlideMQError as error:
        sys.stderr.write(f"{parser.prog}: {escape_control(str(error))}\n")
        return 1


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m glidemq_py.library", description="The server-side function library of glidemq_py."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("dump", "print the assembled code"),
        ("load", "FUNCTION LOAD it on every primary that lacks it"),
        ("check", "print per node whether it is loaded; exit code 1 if it is missing, or another one has its name"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        meaning = "own: the library called by glidemq_py (default); wire: the documented library `glidemq`"
        command.add_argument(
            "--variant", choices=[variant.value for variant in Variant], default=Variant.OWN.value, help=meaning
        )
        if name != "dump":
            command.add_argument("--url", help=f"URL of the server; default: {URL_VARIABLE}")
    return parser


async def _load(url: str, library: Library) -> int:
    if library.name == assemble(Variant.WIRE).name and (missing := WIRE_FUNCTIONS - library.functions):
        raise LibraryError(f"this build's wire library is incomplete and is not loaded: {', '.join(sorted(missing))}")
    from glidemq_py._client.library_publishing import load_everywhere

    transport = await _connected(url)
    try:
        for node, new in sorted((await load_everywhere(transport, library)).items()):
            _print(f"{node}: {library.name} {'loaded' if new else 'already loaded, left unchanged'}")
        for line in await _others(transport, library):
            _print(f"warning: {line}; to replace it: FUNCTION DELETE {library.name}, then load again", sys.stderr)
    finally:
        await transport.close()
    return 0


async def _check(url: str, library: Library) -> int:
    transport = await _connected(url)
    try:
        return 1 if await _others(transport, library, shown=True) else 0
    finally:
        await transport.close()


async def _others(transport: AsyncTransport, library: Library, *, shown: bool = False) -> list[str]:
    """Return a line per node that has another library of this name, or none. ``shown``: print all nodes."""
    from glidemq_py._client.library_publishing import published

    others: list[str] = []
    for node, found in sorted((await published(transport, library.name, with_code=True)).items()):
        state = await _described(transport, node, found[0], library) if found else "is missing"
        line = f"{node}: {library.name} {state}"
        if not found or found[0].code != library.code:
            others.append(line)
        if shown:
            _print(line)
    return others


async def _connected(url: str) -> AsyncTransport:
    from glidemq_py._client.async_transport import AsyncTransport  # GLIDE: `dump` and `--help` do not connect

    return await AsyncTransport.connect(url, check=False)


async def _described(transport: AsyncTransport, node: str, found: PublishedLibrary, library: Library) -> str:
    from glidemq_py._client.library_publishing import version_at

    try:
        version = await version_at(transport, node, library.prefix)
    except GlideMQError as error:
        version = f"unknown ({error})"
    origin = "" if found.code == library.code else " (not this build's code)"
    return f"is loaded, version {version}, {len(found.functions)} functions{origin}"


def _print(text: str, file: TextIO | None = None) -> None:
    (file or sys.stdout).write(f"{escape_control(text)}\n")


if __name__ == "__main__":
    sys.exit(main())
