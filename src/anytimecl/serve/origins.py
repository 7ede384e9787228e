"""Where a request comes from: protection against the pages of other sites."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from anytimecl.serve.problems import Problem


def check_host(host: str) -> None:
    """Without tokens, only requests to a loopback host name are allowed.

    This prevents DNS rebinding, where another site's name resolves to this machine.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:  # malformed
        name = ""
    if not is_loopback(name):
        raise Problem(403, "Without tokens the service answers to localhost alone.")


def check_origin(headers: Headers) -> None:
    """Reject changes from pages of other origins, even if the browser would send them."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
        raise Problem(403, "Requests from pages of other origins are refused.")


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
