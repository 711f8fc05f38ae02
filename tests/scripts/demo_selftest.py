"""What README names is built by scripts/demo, and with it all that `cmake --install` needs.

  demo_selftest.py BUILD    (a build folder of Ninja; exits with 77 where it is another's)
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77


def targets_of_demo():
    """The targets that the script gives to `cmake --build`."""
    text = (ROOT / "scripts/demo").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if "cmake --build --preset release" in line]
    assert len(lines) == 1, lines
    return re.search(r"--target((?:\s+\w+)+)", lines[0]).group(1).split()


def ninja(build, *arguments):
    return subprocess.run(["ninja", "-C", build, "-t", *arguments], check=True,
                          capture_output=True, text=True).stdout


def outputs_of(build, targets):
    """Files of the build folder that are there when these targets are."""
    outputs = set(targets)
    for target in targets:
        # The file itself, where a name is a link to it.
        outputs.update(re.findall(r"^    (\S+)$", ninja(build, "query", target).split("  outputs:")[0],
                                  re.MULTILINE))
    # Not "inputs", which leaves out files that a rule makes together with others.
    return outputs | set(re.findall(r'label="([^"]+)"', ninja(build, "graph", *targets)))


def named_in_readme():
    return set(re.findall(r"build/release/([\w./-]*\w)", (ROOT / "README.md").read_text()))


def installed_from(build):
    """Files of the build folder that its install script takes, but for what CMake itself writes."""
    files, made = set(), {line.split(": ")[0] for line in ninja(build, "targets", "all").splitlines()}
    for script in pathlib.Path(build).rglob("cmake_install.cmake"):
        for kind, names in re.findall(r'TYPE (\w+)[^)]*?FILES((?:\s+"[^"]+")+)', script.read_text()):
            names = {pathlib.Path(name) for name in re.findall(r'"([^"]+)"', names)}
            names = {str(name.relative_to(build)) for name in names if name.is_relative_to(build)}
            files.update(names if kind in ("EXECUTABLE", "STATIC_LIBRARY", "SHARED_LIBRARY", "MODULE") else names & made)
    return files


def main():
    build = str(pathlib.Path(sys.argv[1]).resolve())
    if not pathlib.Path(build, "build.ninja").exists():
        sys.exit(SKIPPED)
    targets = targets_of_demo()
    outputs = outputs_of(build, targets)
    wanted = named_in_readme() | {name for name in installed_from(build) if "python" not in name}
    assert any(name.endswith("libnccl-net-ferry.so") for name in wanted), wanted
    missing = sorted(wanted - outputs)
    assert not missing, f"scripts/demo builds {targets}, and not {missing}"


if __name__ == "__main__":
    main()
