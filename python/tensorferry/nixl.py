"""Makes a folder of NIXL plug-ins with ours in it.

    export NIXL_PLUGIN_DIR=$(python -m tensorferry.nixl)

NIXL searches one folder of plug-ins. This prints the path of one that has those of the installed
NIXL wheel, by links, and libplugin_FERRY.so beside them. With --as-ucx our plug-in also takes the
place of UCX there, for programs that cannot choose; that is never done without being asked for.
"""
import argparse
import importlib.util
import os
import pathlib
import sys
import tempfile

PLUGIN = "libplugin_FERRY.so"
DROP_IN = "libplugin_UCX.so"
WHEELS = ("nixl_cu13", "nixl_cu12")


class NotFound(Exception):
    """Something that has to be installed is missing; the text says what."""


def own_plugin():
    """The path of our plug-in, which is installed with this package."""
    path = pathlib.Path(__file__).resolve().parent / "nixl_plugin" / PLUGIN
    if not path.is_file():
        raise NotFound(f"{path} does not exist; name the plug-in of a build by --plugin")
    return path


def preferred_wheels():
    """The wheels, that first which NIXL's package `nixl` takes where several are installed."""
    try:
        major = importlib.import_module("nixl_meta_utils").detect_cuda_major()
    except ImportError:
        return WHEELS
    return sorted(WHEELS, key=lambda wheel: wheel != f"nixl_cu{major}")


def wheel_plugins():
    """The folder of the plug-ins of the wheel that is installed."""
    for wheel in preferred_wheels():
        spec = importlib.util.find_spec(wheel)
        if spec is None or not spec.submodule_search_locations:
            continue
        site = pathlib.Path(next(iter(spec.submodule_search_locations))).parent
        folder = site / f".{wheel}.mesonpy.libs" / "plugins"
        if folder.is_dir():
            return folder
    raise NotFound(f"none of {', '.join(WHEELS)} is installed; pip install nixl")


def link(target, path):
    """A link at `path`, also where one was; in one step, for others that do the same."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = pathlib.Path(scratch) / path.name
        made.symlink_to(target)
        os.replace(made, path)


def fill(folder, wanted):
    """Fills `folder` with links, and removes those that a former call left there."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.is_symlink() and path.name not in wanted:
            path.unlink(missing_ok=True)  # another process may be doing the same
    for name, target in wanted.items():
        link(target, folder / name)


def make_folder(base, plugin, others, as_ucx=False):
    """Makes a folder of plug-ins below `base`. The wheel's find their libraries by paths from their
    own folder, so what lies around that is linked, too."""
    libraries = others.parent  # of the wheel
    site = libraries.parent
    bundled = libraries.name.removeprefix(".").split(".")[0] + ".libs"
    fill(base, {bundled: site / bundled})
    fill(base / libraries.name, {path.name: path for path in libraries.iterdir() if path != others})
    plugins = {path.name: path for path in others.glob("lib*.so")}
    plugins[PLUGIN] = plugin
    if as_ucx:
        plugins[DROP_IN] = plugin
    folder = base / libraries.name / others.name
    fill(folder, plugins)
    return folder


def default_folder(as_ucx):
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "tensorferry" / ("nixl-as-ucx" if as_ucx else "nixl")


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tensorferry.nixl",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, help="where the links are made")
    parser.add_argument("--plugin", type=pathlib.Path, help=f"another {PLUGIN}")
    parser.add_argument("--as-ucx", action="store_true",
                        help="put our plug-in in the place of UCX, too")
    options = parser.parse_args(arguments)
    try:
        plugin = options.plugin.resolve(strict=True) if options.plugin else own_plugin()
        folder = make_folder(options.folder or default_folder(options.as_ucx), plugin,
                             wheel_plugins(), options.as_ucx)
    except (NotFound, OSError, RuntimeError) as error:  # RuntimeError: no home directory
        sys.exit(f"tensorferry.nixl: {error}")
    print(folder.absolute())


if __name__ == "__main__":
    main()
