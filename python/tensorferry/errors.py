"""Exceptions of the package, by what the caller can do about them."""


class Error(Exception):
    """Any of the library's; its text is one sentence with the values and the next step."""


class InvalidArgument(Error, ValueError):
    """The call is wrong; repeating it cannot help."""


class Unsupported(Error):
    """This build, provider or machine cannot; another may."""


class Unavailable(Error):
    """Out of a resource for now; back off and retry."""


class Refused(Error, PermissionError):
    """The other side denied the access; get a fresh key or other rights."""


class Cancelled(Error):
    """Ended by this side's own cancel() or close()."""


class Timeout(Error, TimeoutError):
    """The deadline passed; the connection may still be good."""


class PeerLost(Error, ConnectionError):
    """This connection is dead; reconnect; others are not affected."""


class DeviceLost(Error):
    """Every connection on this GPU is dead."""


class Corrupt(Error):
    """Bytes that do not follow the protocol; the connection was ended."""


class Internal(Error):
    """A bug of the library's; report it."""


# By the library's name of the code.
BY_CODE = {
    "InvalidArgument": InvalidArgument,
    "Unsupported": Unsupported,
    "Unavailable": Unavailable,
    "Refused": Refused,
    "Cancelled": Cancelled,
    "TimedOut": Timeout,
    "PeerLost": PeerLost,
    "DeviceLost": DeviceLost,
    "Corrupt": Corrupt,
    "Internal": Internal,
}
