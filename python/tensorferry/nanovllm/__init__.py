"""nano-vllm on our kernels, and with a decode step's inputs staged: a plug-in to an installed one.

    import tensorferry.nanovllm
    tensorferry.nanovllm.enable()
    from nanovllm import LLM, SamplingParams   # as always; weights load unchanged

Nothing of nano-vllm is changed on disk. It may be installed, or TENSORFERRY_NANOVLLM may name a
checkout. flash-attn is not needed. One process, one GPU.
"""

import importlib
import importlib.util
import os
import pathlib
import sys
import types

from tensorferry import errors

__all__ = ["disable", "enable", "find", "load"]

_INSTALL = (
    "python -m pip install --no-deps git+https://github.com/GeeeekExplorer/nano-vllm && "
    "python -m pip install transformers xxhash"
)
_MODULES = (
    "config",
    "engine.model_runner",
    "layers.activation",
    "layers.attention",
    "layers.layernorm",
    "layers.rotary_embedding",
    "layers.sampler",
    "models.qwen3",
    "utils.context",
)

_replaced = []  # (owner, name, what was there, ours)


def enable(use_custom_kernels=True, stage_decode=True):
    """Makes nano-vllm's layers ours, for every LLM made from now on.

    use_custom_kernels=False, or TENSORFERRY_DISABLE_KERNELS=1, takes torch's formulas in the place
    of our kernels, and runs without CUDA graphs, as these formulas read lengths on the host.
    stage_decode=False leaves the inputs of decode steps to nano-vllm. Again with other arguments,
    it replaces what it did before. Raises Unsupported, with a list of everything that is missing, if
    this nano-vllm does not have all that the plug-in replaces or calls; nothing changes then, and
    what an earlier call has replaced stays replaced.
    """
    nano = load()
    from tensorferry import _core, _formulas, kernels
    from tensorferry.nanovllm import _engine, _layers, _needs

    ops = kernels if use_custom_kernels else _formulas
    ours = use_custom_kernels and kernels.KERNELS_AVAILABLE
    earlier = list(_replaced)
    disable()  # the check and the replacements look at nano-vllm's own
    try:
        replacements = [
            *_layers.replacements(nano, ops),
            *_engine.limits(nano, capturable=ours and _core.kernels.has_device_code),
            *(_engine.staged(nano) if stage_decode else ()),
        ]
        _needs.check(nano, replacements, staged=stage_decode)
    except BaseException:
        for owner, name, _, replacement in earlier:
            setattr(owner, name, replacement)
        _replaced.extend(earlier)
        raise
    for module, path, function in replacements:
        _replace(module, path, function)


def disable():
    """Undoes enable(). An LLM made in between goes on; its graphs keep our kernels."""
    while _replaced:
        owner, name, before, _ = _replaced.pop()
        setattr(owner, name, before)


def _replace(module, path, function):
    owner, _, name = path.rpartition(".")
    holder = getattr(module, owner) if owner else module
    _replaced.append((holder, name, getattr(holder, name), function))
    setattr(holder, name, function)


def find():
    """That there are torch and a nano-vllm; if not, errors.Unsupported says how to get them."""
    if importlib.util.find_spec("torch") is None:
        raise errors.Unsupported(
            "tensorferry.nanovllm needs torch; install it: python -m pip install torch"
        )
    _find_checkout()
    if "nanovllm" not in sys.modules and importlib.util.find_spec("nanovllm") is None:
        raise errors.Unsupported(
            f"nano-vllm is not installed; install it: {_INSTALL}; or name a checkout of it by "
            "TENSORFERRY_NANOVLLM=PATH"
        )


def load():
    """nano-vllm's modules by name, as they are; with our attention where flash-attn is missing."""
    find()
    from tensorferry.nanovllm import _missing

    try:
        with _missing.flash_attn():
            modules = {name: importlib.import_module(f"nanovllm.{name}") for name in _MODULES}
    except ModuleNotFoundError as error:
        if error.name.startswith("nanovllm"):
            raise errors.Unsupported(
                f"this nano-vllm has no {error.name}; the plug-in is made for nano-vllm 0.2: "
                "install that"
            ) from error
        raise errors.Unsupported(
            f"nano-vllm needs {error.name}; install it: python -m pip install {error.name}"
        ) from error
    return types.SimpleNamespace(
        **{name.rpartition(".")[2]: module for name, module in modules.items()}
    )


def _find_checkout():
    named = os.environ.get("TENSORFERRY_NANOVLLM", "")
    if not named:
        return
    if not (pathlib.Path(named) / "nanovllm" / "__init__.py").is_file():
        raise errors.InvalidArgument(
            f"TENSORFERRY_NANOVLLM is {named!r}, which has no nanovllm/__init__.py; name the "
            "folder of a checkout of nano-vllm"
        )
    if named not in sys.path:
        sys.path.insert(0, named)
