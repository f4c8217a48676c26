"""Which web sites may have a browser change something here.

A browser that remembers a login, by cookie or for Basic, sends it along with requests of any site's
page. So a request that may change something must come from our own pages, from a site in
`management.cors.allow_origins`, or not from a browser.

Browsers tell the site in two headers. `Sec-Fetch-Site` is the browser's own comparison, which
proxies do not affect, but it is sent over TLS and to localhost only. `Origin` has to be compared
with the name that the browser used for us. Pages can set neither, nor `X-Forwarded-Host` without
asking first. Tools such as curl send none of them.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from aiohttp import web

from warren.mgmt.http.errors import ApiError

CHANGES_NOTHING = frozenset({"GET", "HEAD", "OPTIONS"})

OWN = frozenset({"same-origin", "none"})
"""`Sec-Fetch-Site` of requests that our pages make, or that the user typed."""


def check_site(http: web.Request, allowed: Collection[str]) -> None:
    """Raises `ApiError` if a page of another site wants to change something."""
    if http.method in CHANGES_NOTHING:
        return
    origin, site = http.headers.get("Origin"), http.headers.get("Sec-Fetch-Site")
    if origin is not None and ("*" in allowed or origin in allowed):
        return
    if site is not None:
        own = site in OWN
    else:
        own = origin is None or _host(origin) in _own_hosts(http)
    if not own:
        who = f"origin {origin}" if origin is not None else f"Sec-Fetch-Site {site}"
        raise ApiError(
            403,
            "cross_site",
            f"the request comes from a page of another site ({who}); management.cors.allow_origins"
            " names the sites that may change something",
        )


def _host(origin: str) -> str | None:
    """Host and port of an origin, as `Host` has them; None if the origin is hidden or malformed."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _own_hosts(http: web.Request) -> list[str]:
    """The names that the browser may have used for us: a proxy may have changed `Host`."""
    forwarded = http.headers.get("X-Forwarded-Host", "")
    return [http.host.lower(), *(name.strip().lower() for name in forwarded.split(","))]
