"""Errors that have a name, an HTTP status, and OpenAI's shape."""

from __future__ import annotations

from typing import Any

from kdalab.errors import KdalabError

CODES = {
    "invalid_request": 400,
    "unauthorized": 401,
    "not_found": 404,
    "method_not_allowed": 405,
    "timeout": 408,
    "identity_mismatch": 409,
    "too_large": 413,
    "unsupported_media_type": 415,
    "wrong_host": 421,
    "headers_too_large": 431,
    "too_many_requests": 429,
    "internal": 500,
    "failed": 500,
    "transfer_failed": 502,
    "unavailable": 503,
    "too_many_connections": 503,
    "out_of_slots": 503,
    "upstream_timeout": 504,
}
"""Names of errors and their HTTP status."""

RETRY_AFTER = {
    "too_many_requests": 1,
    "too_many_connections": 1,
    "unavailable": 1,
    "out_of_slots": 1,
}
"""Seconds after which the same request may well succeed."""

BUSY = ("too_many_requests", "too_many_connections", "out_of_slots")
"""Errors of a process that is well and has no room now."""

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}


class ServeError(KdalabError):
    """A request that fails, by name; see ``CODES``.

    ``param`` is the field of the request that is wrong, if one is.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param
        self.wait_s = RETRY_AFTER.get(code)  # None: another try makes no sense

    @property
    def status(self) -> int:
        """The HTTP status."""
        return CODES[self.code]

    @property
    def headers(self) -> dict[str, str]:
        """Retry-After, where another try makes sense; how to authenticate."""
        if self.code == "unauthorized":
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": str(self.wait_s)} if self.wait_s is not None else {}

    def body(self) -> dict[str, Any]:
        """As OpenAI's API writes it."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else _TYPES[400])
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    @property
    def is_busy(self) -> bool:
        """Whether the same process takes the same request a little later."""
        return self.code in BUSY

    @classmethod
    def of_body(cls, body: Any, otherwise: str) -> ServeError:
        """The error that another process reported; ``otherwise`` when it is none of ours."""
        error = body.get("error") if isinstance(body, dict) else None
        if isinstance(error, dict) and error.get("code") in CODES:
            param = error.get("param")
            message = str(error.get("message", ""))[:2000]
            return cls(error["code"], message, param if isinstance(param, str) else None)
        return cls("unavailable", otherwise)
