"""URLs of archives, as clients and the log may see them."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

#: User and password, and the query, where signatures and tokens are.
_SECRETS = re.compile(r"(?<=://)[^/?#]*@|[?#].*", re.DOTALL)


def redacted(url: str) -> str:
    """``url`` without user, password and query; a name or path is left as it is."""
    scheme, found, _ = url.partition("://")
    if not found:
        return url
    try:
        _ = urlsplit(url).port
    except ValueError:
        # Where its parts end cannot be known: a password may have a "#" or "/" in it.
        return f"{scheme}://(unreadable)"
    return _SECRETS.sub("", url)
