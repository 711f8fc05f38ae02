"""As much of torch as bench/nccl_collectives needs to run without GPUs: nothing is computed."""


class Anything:
    """Takes the place of modules, tensors and functions."""

    def __getattr__(self, name):
        return self

    def __call__(self, *_args, **_keywords):
        return self

    def __int__(self):
        return 0

    def __float__(self):
        return 0.0

    def __iter__(self):
        return iter(())

    def __operate__(self, *_operands):
        return self

    __add__ = __radd__ = __mul__ = __rmul__ = __mod__ = __sub__ = __truediv__ = __getitem__ = __operate__
    __eq__ = __ne__ = __operate__
    __hash__ = object.__hash__


ANYTHING = Anything()
__version__ = "0"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return ANYTHING
