"""The application class that the gateway is made of."""

from __future__ import annotations

from typing import Any

from quart_trio import QuartTrio

from .body import BoundedRequest
from .connection import RequestConnection
from .hardening import install
from .lifespan import LoudLifespan
from .refusal import Refuser
from .testing import ServingTestClient


class ServingApp(Refuser, QuartTrio):
    """A Quart-Trio application that may face a network.

    To make one changes Hypercorn for the whole process (`hardening.install`), however it is started later.

    * `request_scope(request)` gives a view the request's nursery.
    * `refusal(status)` words the answer to what cannot be taken for a request.
    * `MAX_CONTENT_LENGTH` bytes and `BODY_TIMEOUT` seconds bound every body while it arrives, read or not;
      the view that reads it gets a werkzeug `RequestEntityTooLarge` or `RequestTimeout`, or a `BadRequest`
      if it is malformed, whose description is a sentence for the client.
    * An answer may take as long as it takes: `RESPONSE_TIMEOUT` is off. A client that does not read is
      dropped anyway.
    * Tasks in `app.nursery` (from `before_serving` on) live until shutdown; the crash of one ends the
      process.
    """

    asgi_http_class = RequestConnection
    asgi_lifespan_class = LoudLifespan
    request_class = BoundedRequest
    test_client_class = ServingTestClient

    def __init__(self, import_name: str, **options: Any) -> None:
        install()
        super().__init__(import_name, **options)
        self.config["RESPONSE_TIMEOUT"] = None
