"""Protection of the local server: who may send requests, how large they may be, and what a browser may do with answers.

The server shows files of the folder in which it was started. Other web pages that are open in the same browser, and
other users of the machine, must not reach it.
"""

import secrets
from asyncio import timeout
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from archlab.config.core.trust import naming_nothing

LONGEST_ADDRESS = 8_192
"""Maximum length of a path with its query, in bytes."""

MOST_FIELDS = 100
"""Maximum number of fields in a query or a posted form."""

LONGEST_HEADERS = 32_768
"""Maximum length of all headers in bytes."""

LONGEST_BODY = 65_536
"""Maximum length of a posted form in bytes."""

SECONDS_TO_SEND = 5.0
"""Time in which a browser must send the headers of a request, and again a form."""

_TOO_LONG = f"the form is too long; allowed: {LONGEST_BODY:,} bytes"

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Content security policy: a page loads nothing from other hosts and runs no inline script. The styles of block
diagrams are inline."""

_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """ASGI middleware that answers requests which are not allowed, and adds headers to all answers.

    The first URL contains a token. It is exchanged once for a cookie, which all further requests must have. A page of
    another site cannot read or send the cookie (HttpOnly, SameSite=Strict).
    """

    def __init__(self, app: ASGIApp, token: str, port: int, hosts: Sequence[str]) -> None:
        self._app, self._token = app, token
        self._cookie, self._session = f"archlab-{port}", secrets.token_urlsafe(32)
        self._hosts = {host.lower() for host in hosts}
        self._is_exchanged = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        answer = self._refusal(request) or self._exchange(request)
        if answer is None and request.method == "POST":
            try:
                receive = await _form(receive)
            except _RefusedFormError as error:
                answer = PlainTextResponse(str(error), error.status)
        with naming_nothing():
            await (answer or self._app)(scope, receive, _with_headers(send))

    def _refusal(self, request: Request) -> PlainTextResponse | None:
        headers = request.headers
        if _name(f"//{headers.get('host', '')}") not in self._hosts:
            return PlainTextResponse("this server does not know this host name; add it with archlab ui --host", 421)
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("allowed methods: GET, HEAD, POST", 405)
        if sum(len(name) + len(value) for name, value in headers.raw) > LONGEST_HEADERS:
            return PlainTextResponse(f"the headers are too long; allowed: {LONGEST_HEADERS:,} bytes", 431)
        if len(request.scope["raw_path"]) + len(request.scope["query_string"]) > LONGEST_ADDRESS:
            return PlainTextResponse(f"the address is too long; allowed: {LONGEST_ADDRESS:,} bytes", 414)
        if request.url.query.count("&") >= MOST_FIELDS:
            return PlainTextResponse(f"the query has too many fields; allowed: {MOST_FIELDS}", 400)
        if not _has_allowed_length(headers):
            return PlainTextResponse(_TOO_LONG, 413)
        if not self._is_from_here(request):
            return PlainTextResponse("requests from other sites are not allowed; type the address yourself", 403)
        return None

    def _is_from_here(self, request: Request) -> bool:
        """Return whether the request comes from a page of this server, or from the address bar."""
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
        if origin == "null" and site == "same-origin":
            return True  # a form of a page with the policy no-referrer; only browsers can set sec-fetch-site
        if origin is not None or request.method == "POST":
            return urlsplit(origin or "").netloc.lower() == request.headers["host"].lower()
        is_navigation = request.headers.get("sec-fetch-mode", "navigate") == "navigate"
        return is_navigation or site in ("same-origin", "none")

    def _exchange(self, request: Request) -> PlainTextResponse | RedirectResponse | None:
        """Return the answer that sets the cookie or asks for it. Return None if the request has the cookie."""
        token = request.query_params.get("token")
        has_cookie = secrets.compare_digest(request.cookies.get(self._cookie, "").encode(), self._session.encode())
        if token is None:
            return None if has_cookie else _locked()
        is_valid = secrets.compare_digest(token.encode(), self._token.encode()) and not self._is_exchanged
        if not is_valid and not has_cookie:
            return _locked()
        address = str(request.url.remove_query_params("token")).split(request.url.netloc, 1)[1]
        answer = RedirectResponse("/" + address.lstrip("/\\"), 303)  # two slashes would lead to another host
        if is_valid:
            self._is_exchanged = True
            answer.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
        return answer


def _locked() -> PlainTextResponse:
    text = "open the link that `archlab ui` printed; it works once, so start `archlab ui` again if it was used"
    return PlainTextResponse(text, 403)


def _name(url: str) -> str:
    """Return the host name of a URL in lowercase. Return an empty string if the URL is not valid, or names more than a
    host and a port."""
    try:
        parts = urlsplit(url)
        is_more = "@" in parts.netloc or parts.port == 0 or parts.path or "?" in url or "#" in url
        return "" if is_more else (parts.hostname or "").lower()
    except ValueError:
        return ""


def _has_allowed_length(headers: Headers) -> bool:
    length = headers.get("content-length", "0")
    return length.isdecimal() and int(length) <= LONGEST_BODY


class _RefusedFormError(Exception):
    """A form is not as allowed. `status` is that of the answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


async def _form(receive: Receive) -> Receive:
    """Receive a whole form, and return the function that hands it to the application.

    Raise _RefusedFormError if it is too long, has too many fields, or does not arrive in time. The stated length of a
    form may be missing or wrong.
    """
    body, is_complete = b"", False
    try:
        async with timeout(SECONDS_TO_SEND):
            while not is_complete:
                message = await receive()
                body += message.get("body", b"")
                is_complete = not message.get("more_body", False)
                if len(body) > LONGEST_BODY:
                    raise _RefusedFormError(_TOO_LONG, 413)
    except TimeoutError:
        raise _RefusedFormError(f"the form did not arrive within {SECONDS_TO_SEND:.0f} s", 408) from None
    if body.count(b"&") >= MOST_FIELDS:
        raise _RefusedFormError(f"the form has too many fields; allowed: {MOST_FIELDS}", 400)
    received: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return received.pop() if received else await receive()

    return receive_again


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return send_with_headers
