"""The one place where kvweave's version stands; packaging, the command line and the handshake read it from here."""

__version__ = "0.1.0"
