"""Gives nano-vllm two modules that it lacks: nanovllm.kernels and nanovllm.layers.custom_mlp.

tensorferry_nanovllm.pth loads this at the start of each interpreter, so it imports nothing that is not
loaded by then. TENSORFERRY_NANOVLLM_IMPORTS=0 switches it off. A module of nano-vllm's own, or of a
fork, comes first. Where nano-vllm is imported and flash-attn is not installed, our attention takes its
place, as by tensorferry.nanovllm.enable().
"""

import os
import sys

_PROVIDED = {"nanovllm.kernels": "kernels.py", "nanovllm.layers.custom_mlp": "custom_mlp.py"}
_VERSION = "0.2"


class _Finder:
    """Stands first on sys.meta_path, and asks the other finders before it answers."""

    def find_spec(self, name, path=None, target=None):
        if name != "nanovllm" and name not in _PROVIDED:
            return None
        spec = self._find_elsewhere(name, path, target)
        if name in _PROVIDED:
            return _provided(name) if spec is None else spec
        caller = sys._getframe(1).f_back
        if spec is None and caller and caller.f_code.co_name == "_find_and_load_unlocked":
            # An import statement called this; importlib.util.find_spec() must get None instead.
            raise ModuleNotFoundError(
                "No module named 'nanovllm': nano-vllm is not installed; install it (python -m pip "
                "install --no-deps git+https://github.com/GeeeekExplorer/nano-vllm), or import "
                "tensorferry.nanovllm.kernels, which needs no nano-vllm", name=name)
        return None if spec is None else _with_flash_attn(spec)

    def _find_elsewhere(self, name, path, target):
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None:
                spec = find(name, path, target)
                if spec is not None:
                    return spec
        return None


def _provided(name):
    import importlib.util
    from importlib.machinery import SourceFileLoader

    class Loader(SourceFileLoader):
        def get_code(self, fullname):  # imports and python -m ask for it
            _refuse_other_versions(name)
            return super().get_code(fullname)

    package = importlib.util.find_spec("tensorferry").submodule_search_locations[0]
    path = os.path.join(package, "nanovllm", _PROVIDED[name])
    return importlib.util.spec_from_file_location(name, path, loader=Loader(name, path))


def _refuse_other_versions(name):
    home = os.path.dirname(next(iter(sys.modules["nanovllm"].__path__)))
    version = _version_in(home)
    if version is not None and version.split(".")[:2] != _VERSION.split("."):
        raise ImportError(
            f"tensorferry has {name} for nano-vllm {_VERSION}, and {home} has {version}: install "
            f"nano-vllm {_VERSION}, or import tensorferry.nanovllm.{_PROVIDED[name][:-3]}, which needs no "
            "nano-vllm", name=name)


def _version_in(home):
    """The version of the nano-vllm installed in this folder, or of a checkout; None: forks may lack it."""
    import importlib.metadata
    import tomllib

    for found in importlib.metadata.distributions(name="nano-vllm", path=[home]):
        return found.version
    try:
        with open(os.path.join(home, "pyproject.toml"), "rb") as file:
            project = tomllib.load(file).get("project", {})
    except (OSError, tomllib.TOMLDecodeError):
        return None
    return project.get("version") if project.get("name") == "nano-vllm" else None


def _with_flash_attn(spec):
    import importlib.util

    is_there = "flash_attn" in sys.modules or importlib.util.find_spec("flash_attn")
    if spec.loader is not None and not is_there:
        spec.loader = _ProvidingFlashAttn(spec.loader)
    return spec


class _ProvidingFlashAttn:
    """nano-vllm's loader, with our attention by flash-attn's name while nano-vllm is imported."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def exec_module(self, module):
        from tensorferry.nanovllm import _missing

        with _missing.flash_attn():
            self._loader.exec_module(module)


if os.environ.get("TENSORFERRY_NANOVLLM_IMPORTS", "") != "0":
    sys.meta_path.insert(0, _Finder())
