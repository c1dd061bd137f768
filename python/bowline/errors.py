"""What goes wrong, by whose fault it is."""

from __future__ import annotations


class Error(RuntimeError):
    """Any error of Bowline."""


class InvalidArgument(Error, ValueError):
    """An argument, or an order of calls, that cannot work."""


class PeerError(Error):
    """The other end refused, broke the protocol, or has left."""


class ResourceError(Error):
    """This machine: a limit, a permission, an address in use."""


class PathError(Error):
    """No answer from the other end within the time allowed."""


class RankFailed(PeerError):
    """A rank has failed, and with it the communicator, for good."""

    def __init__(self, message: str, rank: int, cause: str) -> None:
        super().__init__(message)
        #: The rank at fault.
        self.rank = rank
        #: What it did: "unreachable", "left", "mismatch", "protocol", "late" or "local".
        self.cause = cause

    def __reduce__(self):  # An exception with arguments of its own does not pickle by itself.
        return (RankFailed, (str(self), self.rank, self.cause))
