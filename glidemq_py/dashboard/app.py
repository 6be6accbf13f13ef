"""`Dashboard`: the ASGI application, its routes, and the checks that precede every page."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast
from urllib.parse import parse_qs, urlsplit

import jinja2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._core.keys import DEFAULT_PREFIX
from glidemq_py._core.logs import get_logger
from glidemq_py._core.times import Milliseconds
from glidemq_py._operate.access import READ_ONLY, Access, AccessDeniedError
from glidemq_py._operate.action import ManyAction, count
from glidemq_py._operate.conversion import REDACTED, redacted
from glidemq_py._operate.operating import Operator
from glidemq_py._operate.stored_changes import (
    BulkChange,
    cancel_bulk,
    create_bulk,
    perform_audited,
    perform_bulk,
    read_bulk,
)
from glidemq_py._web.clients import NotAllowedError, UnauthorizedError, check_site
from glidemq_py.dashboard.changes import BUTTONS, CHANGES, LABELS, Change, Form
from glidemq_py.dashboard.options import COOKIE, SORT_COOKIE, Authorize, DashboardOptions, session_of
from glidemq_py.dashboard.pages import PAGES, Page, template_of
from glidemq_py.dashboard.reading import Reader
from glidemq_py.dashboard.texts import FILTERS, plot, sparkline
from glidemq_py.dashboard.visit import MissingError, Visit, link
from glidemq_py.errors import GlideMQConnectionError, GlideMQError, GlideMQValidationError, JobNotFoundError

_log = get_logger("glidemq_py.dashboard")
_HERE: Final = Path(__file__).parent
_MAX_BODY: Final = 16 << 20
_BODY_S: Final = 30.0
_ROWS: Final = {"data": 10, "options": 2}
"""Lines of the fields that have several."""
_MAX_NOTES: Final = 1_000
_MAX_STREAMS: Final = 1_000
_ANSWER_S: Final = 0.8
"""How often pages that are open or being read ask whether the server answers, and the time for its answer, seconds."""
_BULK_S: Final = 1.0
"""Time that the response to a bulk change waits for its end, before it shows the page with the progress."""
_YEAR_S: Final = 31_536_000
_STREAM_S: Final = 600.0
"""Time until the browser must ask for a stream again, so that it shows nothing to users who have lost their access."""


class Dashboard:
    """An ASGI application that shows the queues of one server in a browser.

    Run it by ``python -m glidemq_py.dashboard``, or mount it in an application of Starlette, FastAPI or Django::

        dashboard = Dashboard("valkey://localhost", authorize=only_staff)
        app.mount("/queues", dashboard)

    It connects at the first request. Close it with `close`, or use it in an ``async with`` block.

    Args:
        connection: URL or `ConnectionOptions` of the server.
        prefix: First part of every key.
        title: Name in the head of each page.
        allow_changes: Show buttons and forms that change queues and jobs. Otherwise the pages are read-only.
        tokens: Tokens that open the pages, by the name of their user, or a list of them; at least 8 characters. A
            browser asks for one; other clients send the header ``Authorization: Bearer``.
        authorize: Instead of tokens, the check of the application it is mounted in: gets the request, and returns an
            `Access`, or None to reject it. May be a coroutine function.
        hosts: Names accepted in the header Host. Default: those of this machine, or, with ``authorize``, all.
        redact: Names of keys whose values are hidden in data, results and options, in any case and as a part of the
            key. Default: password, token and similar.
        refresh_interval: Time between two updates of an open page, ms or timedelta, 250 ms to an hour.

    Raises:
        GlideMQValidationError: An option is invalid, or ``hosts`` admits other machines without tokens.
    """

    def __init__(
        self, connection: str | ConnectionOptions, *, prefix: str = DEFAULT_PREFIX, title: str = "Queues",
        allow_changes: bool = False, tokens: Mapping[str, str] | Collection[str] | None = None,
        authorize: Authorize | None = None, hosts: Iterable[str] | None = None, redact: Iterable[str] = REDACTED,
        refresh_interval: Milliseconds = 2_000,
    ) -> None:  # fmt: skip
        self._options = DashboardOptions.checked(
            prefix, title, allow_changes, tokens, authorize, hosts, redact, refresh_interval
        )
        self._operator = Operator(connection, prefix=prefix)
        self._reader = Reader(self._operator, self._options.refresh_interval)
        self._notes: OrderedDict[str, str] = OrderedDict()
        self._streams = 0
        self._bulks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        pages = [Route(f"/{path}", functools.partial(self._page, path), methods=["GET"]) for path in PAGES]
        self._app = Starlette(
            routes=[
                *pages,
                Route("/live", self._live, methods=["GET"]),
                Route("/change", self._change, methods=["POST"]),
                Route("/bulk", self._steer_bulk, methods=["POST"]),
                Route("/login", self._login, methods=["GET", "POST"]),
                Route("/health", self._health, methods=["GET"]),
                Mount("/static", GZipMiddleware(StaticFiles(directory=_HERE / "static"))),
            ],
            lifespan=self._lifespan,
            exception_handlers={HTTPException: self._no_route},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        nonce = secrets.token_urlsafe(16)
        scope.setdefault("state", {})
        scope["state"]["nonce"] = nonce

        async def send_secured(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_security_headers(nonce, scope["path"])]
            await send(message)

        request = Request(scope, receive)
        try:
            check_site(request.headers, self._options.hosts)
            if request.method not in ("GET", "HEAD"):
                _check_sender(request)
        except NotAllowedError as error:
            await self._refuse(request, error)(scope, receive, send_secured)
            return
        await self._app(scope, receive, send_secured)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def begin_closing(self) -> None:
        """End the streams of open pages, for servers that wait for open responses before they close."""
        self._closing.set()

    async def close(self) -> None:
        """End the streams of open pages, interrupt bulk changes, and close the connections."""
        self.begin_closing()
        for task in self._bulks:
            task.cancel()
        await asyncio.gather(*self._bulks, return_exceptions=True)
        await self._operator.__aexit__(None, None, None)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None]:
        yield
        await self.close()

    # -- pages --------------------------------------------------------------------------------------------

    async def _visit(self, request: Request, arguments: Mapping[str, str], *, is_stream: bool = False) -> Visit:
        access = await self._options.access_of(request)
        operator = await self._operator.with_access(access)
        return Visit(dict(arguments), operator, self._reader, self._options, is_stream)

    async def _page(self, path: str, request: Request) -> Response:
        page = PAGES[path]
        try:
            visit = await self._visit(request, {**_saved(request), **request.query_params})
            shown = await self._read(page, visit)
            live = link("live", **{**visit.arguments, "of": path or "all"}) if page.is_live else ""
            note = self._notes.pop(visit.arguments.get("note", ""), "")
            text = self._render(request, template_of(page, shown), visit.access, {**shown, "live": live, "note": note})
        except Exception as error:
            return self._refuse(request, error)
        response = HTMLResponse(text)
        if "sort" in request.query_params:
            path, sort = request.scope.get("root_path", "") + "/", request.query_params["sort"]
            response.set_cookie(SORT_COOKIE, sort, _YEAR_S, path=path, httponly=True, samesite="strict")
        return response

    async def _read(self, page: Page, visit: Visit) -> dict[str, Any]:
        """Read the values of a page.

        Raises:
            GlideMQConnectionError: The server has not answered for 1 to 2 seconds. (A page may take longer.)
        """
        reading = asyncio.ensure_future(page.read(visit))
        try:
            while True:
                await self._check_server()
                if (await asyncio.wait([reading], timeout=_ANSWER_S))[0]:
                    return reading.result()
        finally:
            reading.cancel()

    async def _pause(self, left: float) -> None:
        """Wait for this time, seconds, before an open page is read again. Raises GlideMQConnectionError as `_read`."""
        while left > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), min(left, _ANSWER_S))
                return
            left -= _ANSWER_S
            if left > 0:
                await self._check_server()

    async def _check_server(self) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await (await self._operator.transport()).command("TIME")
        except TimeoutError:
            raise GlideMQConnectionError("the server does not answer") from None

    def _render(self, request: Request, template: str, access: Access, shown: dict[str, Any]) -> str:
        queue = request.query_params.get("q", "") or shown.get("q", "")

        def may(kind: str, of: str = queue) -> bool:
            return access.may_perform(kind, of)

        common: dict[str, Any] = {
            "layout": "base.html", "root": request.scope.get("root_path", "") + "/", "nonce": request.state.nonce,
            "here": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            "title": self._options.title, "user": access.user, "live": "", "note": "", "queue": None,
            "may": may, "changes": self._options.allow_changes, "buttons": BUTTONS,
        }  # fmt: skip
        return _templates().get_template(template).render({**common, **shown})

    async def _live(self, request: Request) -> Response:
        """Send a page again whenever it changes, as server-sent events."""
        arguments = dict(request.query_params)
        of = arguments.pop("of", "all")
        page = PAGES.get("" if of == "all" else of)
        if page is None or not page.is_live:
            return self._refuse(request, MissingError("there is no such page"))
        if self._streams >= _MAX_STREAMS:
            return self._refuse(request, NotAllowedError("too many open pages"), 503)
        try:
            visit = await self._visit(request, arguments, is_stream=True)
        except Exception as error:
            return self._refuse(request, error)
        return StreamingResponse(
            self._stream(request, page, visit), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )

    async def _stream(self, request: Request, page: Page, visit: Visit) -> AsyncIterator[bytes]:
        self._streams += 1
        sent, event = b"", b""
        end = time.monotonic() + _STREAM_S
        try:
            yield b"retry: 2000\n\n"
            while not self._closing.is_set():
                before = event
                try:
                    if sent:
                        await self._pause(_ANSWER_S if before == b"problem" else self._options.refresh_interval / 1_000)
                        if self._closing.is_set():
                            return
                    shown = await self._read(page, visit)
                    shown["layout"] = "live.html"
                    text = self._render(request, template_of(page, shown), visit.access, shown)
                    event = b"page"
                except GlideMQError as error:
                    text = _templates().get_template("problem.html").render(problem=str(error))
                    event = b"problem"
                digest = hashlib.sha256(text.encode()).digest()
                if digest == sent:
                    yield b": \n\n"  # a client that is gone is noticed
                else:
                    sent = digest
                    if before != event == b"page":
                        yield b"event: problem\ndata:\n\n"  # removes one that is shown
                    lines = b"".join(b"data: " + line + b"\n" for line in text.encode().splitlines() if line.strip())
                    yield b"event: " + event + b"\n" + lines + b"\n"
                if time.monotonic() >= end:
                    return
        finally:
            self._streams -= 1

    def _refuse(self, request: Request, error: Exception, status: int = 0, form: Form | None = None) -> Response:
        """Return the page for an error; an unknown one is logged with its traceback.

        Args:
            request: The rejected request.
            error: Why it is rejected.
            status: Status of the response; 0 = that of the error.
            form: The rejected form, which the page shows again with a link to the page that it was on.
        """
        if isinstance(error, UnauthorizedError):
            if "text/html" in request.headers.get("accept", "") and request.method == "GET":
                here = request.url.path.removeprefix(request.scope.get("root_path", "")).lstrip("/")
                back = f"{here}?{request.url.query}" if request.url.query else here
                return RedirectResponse(f"{request.scope.get('root_path', '')}/{link('login', back=back)}", 303)
            status, title = 401, "A token is required"
        elif isinstance(error, (NotAllowedError, AccessDeniedError)):
            status, title = status or 403, "Not allowed"
        elif isinstance(error, (JobNotFoundError, MissingError)):
            status, title = 404, "Does not exist"
        elif isinstance(error, GlideMQConnectionError):
            status, title = 503, "The server cannot be reached"
        elif isinstance(error, (GlideMQError, ValueError)):
            status, title = 400, "Rejected"
        else:
            _log.error("dashboard: %s %s failed", request.method, request.url.path, exc_info=error)
            status, title = 500, "An error occurred"
        text = "The log has the details." if status == 500 else str(error)
        shown: dict[str, Any] = {"heading": title, "text": text, "back": "", "typed": (), "fields": ()}
        if form is not None:
            shown["back"] = _local(form.text("back"))
            if status == 400:
                shown["fields"], shown["typed"] = _form_again(form)
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        return HTMLResponse(self._render(request, "error.html", READ_ONLY, shown), status, headers)

    async def _no_route(self, request: Request, error: Exception) -> Response:
        """Return the page for an address or a method that no route has."""
        if getattr(error, "status_code", 404) == 405:
            return self._refuse(request, NotAllowedError(f"{request.url.path} does not support {request.method}"), 405)
        return self._refuse(request, MissingError(f"there is no page {request.url.path}"))

    async def _health(self, request: Request) -> Response:
        """Return 200 if the server answers, else 503."""
        try:
            await self._check_server()
        except GlideMQError as error:
            return Response(f"{error}\n", 503, media_type="text/plain")
        return Response("ok\n", media_type="text/plain")

    # -- changes ------------------------------------------------------------------------------------------

    async def _change(self, request: Request) -> Response:
        """Make a change, or ask for its confirmation first."""
        form: Form | None = None
        try:
            form = await _form(request, self._options.redact)
            visit = await self._visit(request, {"q": form.text("q")})
            change = CHANGES.get(form.text("change"))
            if change is None:
                raise GlideMQValidationError("change", form.text("change"), f"must be one of {', '.join(CHANGES)}")
            visit.access.check_action(change.kind, visit.queue)
            action = change.create(form)
            back = _local(form.text("back"))
            if change.asks(form) and not form.text("confirmed"):
                number = await count(visit.operator, action)
                fields = [(name, value) for name, values in form.fields.items() for value in values]
                shown = {"asks": change.button.asks, "count": number, "fields": fields, "back": back, "q": visit.queue}
                return HTMLResponse(self._render(request, "confirm.html", visit.access, shown))
            root = request.scope.get("root_path", "")
            hide = functools.partial(redacted, names=self._options.redact)
            user = visit.access.user or "anonymous"
            if isinstance(action, ManyAction) and change.is_bulk(form):
                total = form.whole("count")
                bulk_id = await create_bulk(visit.operator, action, user, form.text("change"), total, hide=hide)
                bulk = await self._begin_bulk(visit, bulk_id)
                if bulk is None or bulk.state != "finished":
                    return RedirectResponse(f"{root}/{link('bulk', q=visit.queue, id=bulk_id)}", 303)
                text = _report(change, bulk.done, bulk.problems, bulk.examples)
            else:
                result = await perform_audited(visit.operator, action, user, hide=hide)
                named = [f"{each.id}: {each.error}" for each in result.problems]
                text = _report(change, result.done, len(result.problems), named)
                if result.ids and change.kind == "add_job":
                    text = f"job {result.ids[0]} {result.detail}"
        except Exception as error:
            return self._refuse(request, error, form=form)
        self._reader.forget(visit.queue)
        return RedirectResponse(f"{root}/{_with_note(back, self._note(text))}", 303)

    async def _begin_bulk(self, visit: Visit, bulk_id: str) -> BulkChange | None:
        """Perform a bulk change in the background; return its state after a moment, in which a small one ends."""
        task = asyncio.ensure_future(perform_bulk(visit.operator, bulk_id))
        self._bulks.add(task)
        task.add_done_callback(self._bulk_ended)
        await asyncio.wait([task], timeout=_BULK_S)
        self._reader.forget(visit.queue)
        return await read_bulk(visit.operator, bulk_id)

    def _bulk_ended(self, task: asyncio.Task[None]) -> None:
        self._bulks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("dashboard: a bulk change was interrupted", exc_info=task.exception())

    async def _steer_bulk(self, request: Request) -> Response:
        """Stop or continue a bulk change."""
        try:
            form = await _form(request)
            visit, bulk_id = await self._visit(request, {"q": form.text("q")}), form.text("id")
            bulk = await read_bulk(visit.operator, bulk_id)
            if bulk is None or bulk.queue != visit.queue:
                raise MissingError("the change does not exist, or is older than a week")
            visit.access.check_action(bulk.kind, bulk.queue)
            if form.text("do") == "cancel":
                await cancel_bulk(visit.operator, bulk_id)
            elif form.text("do") == "continue":
                await self._begin_bulk(visit, bulk_id)
            else:
                raise GlideMQValidationError("do", form.text("do"), "must be cancel or continue")
        except Exception as error:
            return self._refuse(request, error)
        root = request.scope.get("root_path", "")
        return RedirectResponse(f"{root}/{link('bulk', q=bulk.queue, id=bulk_id)}", 303)

    def _note(self, text: str) -> str:
        key = secrets.token_urlsafe(9)
        self._notes[key] = text
        if len(self._notes) > _MAX_NOTES:
            self._notes.popitem(last=False)
        return key

    async def _login(self, request: Request) -> Response:
        """Ask for a token, and give the browser a session for a right one."""
        back = _local(request.query_params.get("back", ""))
        if request.method == "GET" or not self._options.sessions:
            return HTMLResponse(self._render(request, "login.html", READ_ONLY, {"back": back, "wrong": False}))
        try:
            given = (await _form(request)).text("token").strip()
            session = session_of(given)
            user = await self._options.user_with(session)
        except GlideMQError as error:
            return self._refuse(request, error)
        if user is None:
            page = self._render(request, "login.html", READ_ONLY, {"back": back, "wrong": True})
            return HTMLResponse(page, 401)
        root = request.scope.get("root_path", "")
        response = RedirectResponse(f"{root}/{back}", 303)
        response.set_cookie(
            COOKIE, session, path=f"{root}/", httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return response


def _report(change: Change, done: int, problems: int, examples: Sequence[str]) -> str:
    """Return the text of the result of a change."""
    text = change.report(done)
    return f"{text}; {problems:,} could not be changed: {'; '.join(examples[:3])}" if problems else text


def _saved(request: Request) -> dict[str, str]:
    """Return the order of the queues that the visitor has chosen last."""
    return {"sort": request.cookies[SORT_COOKIE]} if SORT_COOKIE in request.cookies else {}


def _check_sender(request: Request) -> None:
    """Reject a change that does not say where it comes from; a browser always does.

    Raises:
        NotAllowedError: there is neither an Origin, nor a Sec-Fetch-Site, nor a token in the header Authorization.
    """
    if not any(name in request.headers for name in ("origin", "sec-fetch-site", "authorization")):
        raise NotAllowedError("a change needs the header Origin or Sec-Fetch-Site, which browsers send")


async def _form(request: Request, hidden: tuple[str, ...] = ()) -> Form:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise GlideMQValidationError("Content-Type", kind, "must be application/x-www-form-urlencoded")
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > _MAX_BODY:
                    raise GlideMQValidationError("form", len(body), f"must be at most {_MAX_BODY:,} bytes")
    except TimeoutError:
        raise GlideMQValidationError("form", len(body), f"must be complete within {_BODY_S:g} s") from None
    return Form(parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True), hidden)


def _form_again(form: Form) -> tuple[list[tuple[str, str]], list[tuple[str, str, str, int]]]:
    """Return the hidden fields of a rejected form; and name, label, value and rows of those that its user typed."""
    change = CHANGES.get(form.text("change"))
    typed = change.button.typed if change is not None else ()
    hidden = [(name, value) for name, values in form.fields.items() for value in values if name not in typed]
    return (hidden if typed else []), [(name, LABELS[name], form.text(name), _ROWS.get(name, 0)) for name in typed]


def _local(address: str) -> str:
    """Return an address of these pages; "" for any other, so no link leads to another site."""
    parts = urlsplit(address.lstrip("/"))
    if parts.scheme or parts.netloc or parts.path not in PAGES:
        return ""
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def _with_note(address: str, note: str) -> str:
    path, _, query = address.partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith("note=")]
    return f"{path}?{'&'.join([*kept, f'note={note}'])}"


def _security_headers(nonce: str, path: str) -> list[tuple[bytes, bytes]]:
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'self'"
    )
    return [
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"x-frame-options", b"DENY"),
        (b"referrer-policy", b"same-origin"),
        (b"cross-origin-opener-policy", b"same-origin"),
        # Only the static files contain no data of jobs.
        *([] if "/static/" in path else [(b"cache-control", b"no-store")]),
    ]


@functools.cache
def _templates() -> jinja2.Environment:
    """Return the templates, which all dashboards of a process share: to compile them takes longer than a page."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    found.filters.update(FILTERS)
    cast("Any", found.globals).update(link=link, sparkline=sparkline, version=_static_version(), plot=plot)
    return found


def _static_version() -> str:
    """Return a text that changes with the static files, so that browsers may keep them."""
    digest = hashlib.sha256()
    for file in sorted((_HERE / "static").iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
