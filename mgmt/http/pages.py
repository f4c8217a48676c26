"""The web pages, and the other answers to browsers outside of the API's paths.

The files are in `mgmt/static`. They are read once: the paths served are a fixed list, so a path in
a request never reaches the file system. `docs/web-ui.md` says how the pages work.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from aiohttp import web

from warren.mgmt.http.server import API, SECURITY, Handler, Routes

TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
INDEX = "index.html"

API_PAGE = (
    "HTTP API",
    (
        "Everything the pages do, they do through this API. It answers JSON, and wants HTTP Basic"
        " authentication or the cookie of a login.",
        "Names in paths are percent-encoded: the virtual host / is %2F. The default exchange is"
        " amq.default.",
        "Lists take columns, sort, sort_reverse, page, page_size, name and use_regex.",
    ),
    (("openapi.json", "All endpoints, as an OpenAPI description"), ("../", "The pages")),
)
CLI_PAGE = (
    "Command line tools",
    (
        "Warren does not ship rabbitmqadmin. The one of RabbitMQ 3.10 works unchanged; it comes"
        " with RabbitMQ's own releases, and needs nothing but Python.",
        "On the node's own machine, the warren command does the same and more: see warren ctl"
        " --help.",
    ),
    (("../api/index.html", "The HTTP API"), ("../", "The pages")),
)


@dataclass(frozen=True)
class Page:
    """An answer that is always the same."""

    body: bytes
    content_type: str
    etag: str

    async def serve(self, request: web.Request) -> web.StreamResponse:
        # Browsers must revalidate each time, as a newer node has other files under the same names.
        headers = {**SECURITY, "Cache-Control": "no-cache", "ETag": f'"{self.etag}"'}
        known = request.if_none_match or ()
        if any(tag.value in (self.etag, "*") for tag in known):
            return web.Response(status=304, headers=headers)
        response = web.Response(
            body=self.body, content_type=self.content_type, charset="utf-8", headers=headers
        )
        response.enable_compression()
        return response


def page_routes(path_prefix: str) -> Routes:
    """The routes under `path_prefix` that do not belong to the API."""
    prefix = path_prefix.rstrip("/")
    pages = _static_pages()
    routes: dict[str, Handler] = {f"{prefix}/{name}": page.serve for name, page in pages.items()}
    routes[f"{prefix}/"] = pages[INDEX].serve
    if prefix:
        # Without the slash, relative addresses in the page would miss the prefix.
        routes[prefix] = _redirect(f"{prefix}/")
    to_api_page = _redirect(f"{prefix}{API}/index.html")
    routes[f"{prefix}{API}"] = routes[f"{prefix}{API}/"] = to_api_page
    routes[f"{prefix}{API}/index.html"] = _text_page(*API_PAGE).serve
    cli = _text_page(*CLI_PAGE)
    routes[f"{prefix}/cli"] = _redirect(f"{prefix}/cli/")
    for name in ("", INDEX, "rabbitmqadmin"):
        routes[f"{prefix}/cli/{name}"] = cli.serve
    return routes


def _static_pages() -> dict[str, Page]:
    """The files of the pages by name."""
    found = {}
    for file in files("warren.mgmt").joinpath("static").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in TYPES:
            found[file.name] = _page(file.read_bytes(), TYPES[suffix])
    return found


def _page(body: bytes, content_type: str) -> Page:
    return Page(body, content_type, hashlib.sha256(body).hexdigest()[:32])


def _redirect(location: str) -> Handler:
    async def serve(request: web.Request) -> web.StreamResponse:
        return web.Response(status=301, headers={**SECURITY, "Location": location})

    return serve


def _text_page(title: str, paragraphs: tuple[str, ...], links: tuple[tuple[str, str], ...]) -> Page:
    """A short page beside `index.html`, in its style."""
    text = "".join([f"<p>{escape(paragraph)}</p>\n" for paragraph in paragraphs])
    items = "".join([f'<li><a href="{to}">{escape(label)}</a></li>\n' for to, label in links])
    html = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} · Warren</title>\n"
        '<link rel="icon" href="../favicon.svg" type="image/svg+xml">\n'
        '<link rel="stylesheet" href="../style.css">\n</head>\n<body class="text-page">\n<main>\n'
        f"<h1>{escape(title)}</h1>\n{text}<ul>\n{items}</ul>\n</main>\n</body>\n</html>\n"
    )
    return _page(html.encode(), "text/html")
