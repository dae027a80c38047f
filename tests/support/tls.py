"""A server's certificate for loopback, and a client that trusts it."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, NamedTuple

import trustme

if TYPE_CHECKING:
    from pathlib import Path


class Trust(NamedTuple):
    """The server's files and the client's side."""

    chain: str
    key: str
    client: ssl.SSLContext


def make_trust(directory: Path) -> Trust:
    """Issue a certificate, for localhost and 127.0.0.1, into files of ``directory``."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    chain, key = directory / "cert.pem", directory / "key.pem"
    certificate.private_key_pem.write_to_path(str(key))
    for each in certificate.cert_chain_pems:
        each.write_to_path(str(chain), append=True)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return Trust(str(chain), str(key), client)
