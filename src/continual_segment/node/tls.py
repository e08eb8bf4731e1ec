"""TLS: both sides of a connection show a certificate that the authorities of the configuration signed."""

from __future__ import annotations

import ssl

from continual_segment.errors import ConfigError
from continual_segment.node.config import TlsConfig


def server_context(tls: TlsConfig) -> ssl.SSLContext:
    """For those who connect to us."""
    return _context(ssl.Purpose.CLIENT_AUTH, tls)


def client_context(tls: TlsConfig) -> ssl.SSLContext:
    """For destinations, whose certificate must also be for their host name."""
    return _context(ssl.Purpose.SERVER_AUTH, tls)


def _context(purpose: ssl.Purpose, tls: TlsConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(purpose, cafile=str(tls.authorities))
        context.load_cert_chain(tls.certificate, tls.key)
    except OSError as error:  # errors of ssl are OSErrors, too
        files = f"{tls.certificate}, {tls.key} or {tls.authorities}"
        raise ConfigError(f"{files}: not a readable PEM file of that kind ({error}). Check [tls].") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    return context
