"""Login, and the caller's own name and tags (management_api.md sections 1 and 2)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from aiohttp import web

from warren.mgmt.http.caller import Caller
from warren.mgmt.http.endpoint import Endpoint, HttpReply, Right
from warren.mgmt.http.errors import BadRequest
from warren.mgmt.http.request import ApiRequest

COOKIE_ATTRIBUTES = "HttpOnly; SameSite=Strict; Path=/"

LogIn = Callable[[web.Request, tuple[str, str]], Caller]


async def whoami(request: ApiRequest) -> Any:
    return {"name": request.caller.name, "tags": sorted(request.caller.user.tags)}


async def auth(request: ApiRequest) -> Any:
    """Answer that there is no OAuth: web pages ask this before they show the login."""
    return {"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""}


async def extensions(request: ApiRequest) -> Any:
    return [{"javascript": "dispatcher.js"}]


def endpoints(log_in: LogIn) -> list[Endpoint]:
    """The endpoints; `log_in` checks a name and a password."""

    async def login(request: ApiRequest) -> HttpReply:
        try:
            form = await request.http.post()
        except (ValueError, LookupError, AssertionError) as error:
            raise BadRequest(f"the form cannot be read: {error}") from error
        user, password = form.get("username"), form.get("password")
        if not isinstance(user, str) or not isinstance(password, str):
            raise BadRequest("username and password are wanted")
        log_in(request.http, (user, password))
        token = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
        secure = "; Secure" if request.http.secure else ""
        timeout_m = request.managed.config.login_session_timeout_min
        age = f"; Max-Age={60 * timeout_m}" if timeout_m is not None else ""
        cookie = f'auth="{token}"; {COOKIE_ATTRIBUTES}{secure}{age}'
        return HttpReply(200, "ok", {"Set-Cookie": cookie})

    async def logout(request: ApiRequest) -> HttpReply:
        return HttpReply(204, None, {"Set-Cookie": f"auth=; Max-Age=0; {COOKIE_ATTRIBUTES}"})

    return [
        Endpoint("/whoami", {"GET": whoami}, summary="Who the caller is"),
        Endpoint("/auth", {"GET": auth}, Right.ANYBODY, summary="How pages log in"),
        Endpoint("/extensions", {"GET": extensions}, summary="Extensions of the pages"),
        Endpoint(
            "/login", {"POST": login, "DELETE": logout}, Right.ANYBODY, summary="Log in by cookie"
        ),
    ]
