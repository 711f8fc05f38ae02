"""Finds libnccl-net-ferry.so, NCCL's network by Tensorferry, in the installed package.

    eval "$(python -m tensorferry.nccl)"

That prints the lines that a shell runs so that NCCL of its programs loads the plug-in. Loads neither
torch nor NCCL.
"""
import argparse
import pathlib
import shlex
import sys

PLUGIN = "libnccl-net-ferry.so"


class NotFound(Exception):
    """The plug-in is not installed; the text says how to get it."""


def plugin_path():
    """The plug-in's absolute path, as text. Raises NotFound in a package that was built from source,
    which leaves the plug-in out."""
    path = pathlib.Path(__file__).resolve().parent / "nccl_plugin" / PLUGIN
    if not path.is_file():
        raise NotFound(f"{path} does not exist: wheels of a release have it, packages built by "
                       f"`pip install .` do not; build the target ferry_nccl_plugin and name its "
                       f"{PLUGIN} by NCCL_NET_PLUGIN")
    return str(path)


def exports(path):
    """The lines for a shell. NCCL before 2.21 takes no path, but finds the plug-in by its name."""
    folder = shlex.quote(str(pathlib.Path(path).parent))
    return (f"export NCCL_NET_PLUGIN={shlex.quote(path)}\n"
            "# before NCCL 2.21 instead:\n"
            f"# export NCCL_NET_PLUGIN=ferry LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH\n")


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tensorferry.nccl",
                                     description=__doc__.splitlines()[0])
    parser.parse_args(arguments)
    try:
        print(exports(plugin_path()), end="")
    except NotFound as error:
        sys.exit(f"tensorferry.nccl: {error}")


if __name__ == "__main__":
    main()
