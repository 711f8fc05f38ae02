"""Messages of JSON between peers: the size of each goes before its text. What a peer says is checked.

A form says what a value must be: a dict of the forms of its fields ({...: form}: of all), a list with
one form for all items, a tuple with one for each, or a function that is true of good values.
"""

import json
import math
import reprlib

from tensorferry import errors

SIZE = 16  # what the tag of a message's size is greater by than that of its text
# JSON of 64 MiB took 1.6 GiB when it was parsed, so most messages have a lower limit.
MAX_BYTES = 64 << 20
SMALL_BYTES = 1 << 20
_MAX_NUMBER = 1 << 62
_MAX_RANK = 64
_MISSING = type("Missing", (), {"__repr__": lambda _: "missing"})()


def encoded(said):
    """(size, text), as they are sent."""
    text = json.dumps(said).encode()
    return len(text).to_bytes(8, "little"), text


def max_bytes(names):
    """The limit for a message about tensors of these names.

    Each has 4096 bytes for its shape, type and key, and 12 for a character, which JSON may escape as
    two surrogates.
    """
    return min(MAX_BYTES, (4 << 20) + sum(4096 + 12 * len(repr(name)) for name in names))


def length(size, peer, limit):
    nbytes = int.from_bytes(size, "little")
    if nbytes > limit:
        raise errors.Corrupt(f"{_who(peer)} speaks of a message of {nbytes} bytes; {limit} are allowed")
    return nbytes


def decoded(text, peer):
    """A peer's message, which is an object of JSON."""
    try:
        said = json.loads(bytes(text))
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise errors.Corrupt(f"{_who(peer)} has sent what is not a JSON object")
    return said


def _who(peer):
    return peer.info()["peer"]


def require(said, form, what):
    """Raises Corrupt, which names the first field that is not of the form."""
    if wrong := _wrong(said, form, ""):
        raise errors.Corrupt(f"{what} is not of the protocol: {wrong}; run one release at both ends")


def _wrong(value, form, at):
    kind = type(form) if isinstance(form, (dict, list)) else list
    if not isinstance(form, (dict, list, tuple)):
        return "" if form(value) else _said(value, at)
    if not isinstance(value, kind) or (isinstance(form, tuple) and len(value) != len(form)):
        return _said(value, at)
    if isinstance(form, tuple):
        parts = zip(range(len(form)), value, form)
    elif isinstance(form, list):
        parts = ((index, part, form[0]) for index, part in enumerate(value))
    elif ... in form:
        parts = ((key, part, form[...]) for key, part in value.items())
    else:
        parts = ((key, value.get(key, _MISSING), its) for key, its in form.items())
    wrongs = (_wrong(part, its, f"{at}[{key!r:.80}]") for key, part, its in parts)
    return next(filter(None, wrongs), "")


def _said(value, at):
    return f"{at or 'it'} is {reprlib.repr(value)}"


def number(value):
    return type(value) is int and 0 <= value < _MAX_NUMBER


def positive(value):
    return number(value) and value > 0


def seconds(value):
    return type(value) in (int, float) and 0 <= value < _MAX_NUMBER


def text(value):
    return isinstance(value, str)


def hexadecimal(value):
    try:
        bytes.fromhex(value)
    except (TypeError, ValueError):
        return False
    return True


def shape(value):
    """A tensor's sizes, whose product is a number, too."""
    if not isinstance(value, list) or len(value) > _MAX_RANK or not all(map(number, value)):
        return False
    return number(math.prod(value))


def anything(value):
    return value is not _MISSING
