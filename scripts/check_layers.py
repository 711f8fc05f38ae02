#!/usr/bin/env python3
"""Checks the rules about the source tree that no compiler knows.

usage: check_layers.py [--part | --draw] [SOURCE_ROOT]     (the folder that holds ferry/, plugins/, python/ and
                                                            tools/; default: this checkout)

A rule that no file of the tree needs is a violation, except with --part, for a tree of some files. So is a
picture in docs/architecture.md that does not show the includes; --draw draws it anew. Prints one line per
violation and exits 1 if there is any.
"""
import pathlib
import re
import sys

# A subcommand of the program includes no other; what they share is in support.
TOOLS = {
    "": {"core"},
    "/bench": {"core", "cuda", "cuda/prim", "copy", "kernels", "tcpx/unpack"},
    "/doctor": {"core", "net", "net/tcp", "tcpx", "transfer"},
    "/info": {"core", "cuda", "net", "net/tcp", "tcpx", "transfer"},
    "/pages": {"core"},
    "/perf": {"core", "cuda", "copy", "net", "net/tcp", "tcpx", "transfer"},
    "/transfer": {"core", "net", "transfer"},
}
# The rooms of transfer, and the rooms that each may include. All know the value types of the public
# handles (TRANSFER_VALUES), and no handle.
TRANSFER_ROOMS = {
    "": ("core cuda copy net", "handshake gpu lane connection endpoint"),
    "/handshake": ("core net session", ""),
    "/memory": ("core copy", "handshake"),
    "/gpu": ("core cuda copy net", "handshake memory"),
    "/stats": ("core net", ""),
    "/recovery": ("core net session", "handshake stats"),
    "/lane": ("core cuda copy net", "handshake memory gpu"),
    "/connection": ("core net session", "handshake memory gpu stats recovery lane"),
    "/endpoint": ("core net session", "handshake memory gpu stats recovery lane connection"),
}
TRANSFER_VALUES = {"transfer/" + name for name in ("counters.h", "operation_kind.h", "options.h", "path.h",
                                                   "readiness.h", "region.h")}
# Includes beyond the table: a file, and what it includes. The lists of built-in providers name each of
# them, through its factory.
EXCEPTIONS = {
    ("net/builtin.cc", "net/tcp/factory.h"),
    ("net/choose_provider.cc", "tcpx/factory.h"),
}
# Who may include whom. A folder that is not listed here is an error, so a new layer is a decision; an
# arrow that no file uses is one, too.
ALLOWED = {
    "": {"core", "transfer"},  # ferry/ferry.h, which nothing of ours includes
    "core": set(),
    "cuda": {"core"},
    "cuda/prim": set(),
    "copy": {"core", "cuda", "cuda/prim"},
    "kernels": {"core", "cuda", "cuda/prim"},
    "net": {"core"},
    "net/nccl_abi": set(),
    "session": {"core", "net"},
    "net/tcp": {"core", "net"},
    "tcpx": {"core", "cuda", "copy", "net", "net/nccl_abi", "session", "tcpx/unpack"},
    "tcpx/unpack": {"core", "cuda", "cuda/prim", "copy"},
    **{"transfer" + room: {*below.split(), *("transfer/" + name for name in rooms.split())}
       for room, (below, rooms) in TRANSFER_ROOMS.items()},
    "python": {"core", "cuda", "transfer", "kernels"},
    "plugins/nccl": {"core", "net", "net/nccl_abi", "session"},
    "plugins/nixl": {"core", "copy", "transfer"},
    "tools/support": {"core", "cuda", "net", "tcpx", "transfer"},
    **{"tools" + room: {"tools/support", *below} for room, below in TOOLS.items()},
}
DEVICE_SUFFIXES = {".cu", ".cuh"}
SUFFIXES = {".h", ".cc"} | DEVICE_SUFFIXES
SOURCES = ("ferry", "plugins", "python", "tools")

CAST_LAYERS = {"cuda/prim", "cuda", "net/tcp"}
COMMENT_REACH = 3  # lines above, for the rules that ask for a comment

INCLUDE = re.compile(r'\s*#\s*include\s*"([^"]+)"')
# The compiler finds files of ours between angle brackets, too; the checks of includes know only quotes.
BRACKETS = re.compile(r"\s*#\s*include\s*<((?:ferry|plugins|python|tools|tests|standin)/[^>]+)>")
ASM = re.compile(r"\b(?:asm|__asm__)\b\s*(?:volatile\b|__volatile__\b|goto\b)?\s*\(")
CAST = re.compile(r"\breinterpret_cast\s*<")
SHARED = re.compile(r"\bshared_ptr<.*>\s+\w+\s*(?:;|=|\{)")


def named(path):
    """A path from the source root as the layers have it: without ferry/, except where that would name another room."""
    return path.relative_to("ferry") if path.parts[0] == "ferry" and path.parts[1] not in SOURCES else path


def layer_of(path):
    """The layer of a path, or its first folder when there is no such layer."""
    folders = path.parts[:-1]
    two = "/".join(folders[:2])
    if two in ALLOWED:
        return two
    return folders[0] if folders else ""


def is_test(path):
    return bool({"testing", "tests"} & set(path.parts)) or path.stem.endswith(("_test", "_bench"))


def may_include(path, target):
    mine, other = layer_of(path), layer_of(target)
    if mine == other == "kernels":  # an op knows what all share, and no other op
        return len(target.parts) == 2 or target.parts[:-1] == path.parts[:-1]
    if (path.as_posix(), target.as_posix()) in EXCEPTIONS:
        return True
    if mine.startswith("transfer/") and other == "transfer":
        return target.as_posix() in TRANSFER_VALUES
    if other == "cuda/prim" and path.suffix not in DEVICE_SUFFIXES:
        return False
    return other == mine or other in ALLOWED.get(mine, set())


def check_include(path, line):
    in_brackets = BRACKETS.match(line)
    if in_brackets:
        return f"<{in_brackets[1]}> is a file of ours: include it in quotes"
    match = INCLUDE.match(line)
    if not match:
        return None
    included = match.group(1)
    if included.startswith("third_party/"):
        return None
    if is_test(path) and included.startswith(("tests/", "standin/")):
        return None
    if not included.startswith(tuple(f"{folder}/" for folder in SOURCES)):
        return f'"{included}" is not a path from the source root'
    target = named(pathlib.PurePosixPath(included))
    if is_test(path):
        return None
    if "testing" in target.parts:
        return f"only tests may include {included}"
    if not may_include(path, target):
        return f"{layer_of(path)} may not include {included}"
    return None


def has_comment(lines, index):
    return any("//" in line for line in lines[max(0, index - COMMENT_REACH):index + 1])


def may_cast(path):
    return layer_of(path) in CAST_LAYERS or re.search(r"(^|_)(wire|abi)(_|$)", path.stem)


def check_code(path, lines, index):
    code = lines[index].split("//")[0]
    if ASM.search(code) and layer_of(path) != "cuda/prim":
        yield "asm belongs in cuda/prim"
    if is_test(path) or has_comment(lines, index):
        return
    if CAST.search(code) and not may_cast(path):
        yield "reinterpret_cast outside wire, abi, cuda and net/tcp needs a comment saying why"
    if SHARED.search(code):
        yield "a shared_ptr needs a comment saying who shares it and why"


def check_file(path, text):
    """Yields (line number, message) for each violation; path is as layers have it."""
    lines = text.splitlines()
    if layer_of(path) not in ALLOWED:
        yield 1, f"'{layer_of(path)}' is not a layer"
        return
    for index, line in enumerate(lines):
        wrong_include = check_include(path, line)
        if wrong_include:
            yield index + 1, wrong_include
        for message in check_code(path, lines, index):
            yield index + 1, message


def check_own_header(root, file):
    """A source shows that its header can be included alone, which cmake/FerryInstall.cmake relies on: a
    header beside a source has no compilation of its own."""
    if file.suffix != ".cc" or not file.with_suffix(".h").is_file():
        return
    header = file.with_suffix(".h").relative_to(root).as_posix()
    lines = file.read_text(encoding="utf-8").splitlines()
    number, first = next(((number, line) for number, line in enumerate(lines, 1)
                          if re.match(r"\s*#\s*include\b", line)), (1, ""))
    if first.strip() != f'#include "{header}"':
        yield number, f"the first include has to be {header}, which shows that it can be included alone"


def sources(root):
    """(file, its path as layers have it) of each source."""
    files = [file for folder in SOURCES for file in sorted((root / folder).rglob("*"))]
    for file in files:
        if file.is_file() and file.suffix in SUFFIXES:
            yield file, named(pathlib.PurePosixPath(file.relative_to(root).as_posix()))


def check_tree(root):
    for file, path in sources(root):
        found = [*check_file(path, file.read_text(encoding="utf-8")), *check_own_header(root, file)]
        for number, message in found:
            yield f"{file.relative_to(root)}:{number}: {message}"


def includes_of(root):
    """{(file, included file)} as layers have them, of what is not a test."""
    return {(path, named(pathlib.PurePosixPath(match.group(1))))
            for file, path in sources(root) if not is_test(path)
            for match in map(INCLUDE.match, file.read_text(encoding="utf-8").splitlines()) if match}


def arrows_of(used):
    return {(layer_of(path), layer_of(target)) for path, target in used
            if (path.as_posix(), target.as_posix()) not in EXCEPTIONS}


def check_tables(root):
    """Yields a message for each rule of the tables that no file of the tree needs."""
    used = includes_of(root)
    pairs = {(path.as_posix(), target.as_posix()) for path, target in used}
    arrows = arrows_of(used)
    for layer, below in ALLOWED.items():
        for other in sorted(below):
            if (layer, other) not in arrows:
                yield f"ALLOWED: no file of {layer or 'ferry.h'} includes one of {other}: remove the arrow"
    for file, included in sorted(EXCEPTIONS - pairs):
        yield f"EXCEPTIONS: {file} does not include {included}: remove the exception"
    for value in sorted(TRANSFER_VALUES - {target for path, target in pairs if path.startswith("transfer/")}):
        yield f"TRANSFER_VALUES: no room of transfer includes {value}: remove it"


def room_of(layer):
    """The room of the picture: one of all tools, and one of transfer."""
    first = layer.split("/")[0]
    return first if first in ("tools", "transfer") else layer


def picture(arrows):
    """A line for each room, a floor above those that it includes, without arrows that others imply."""
    return floors({(a, b) for a, b in ((room_of(a), room_of(b)) for a, b in arrows if a) if a != b})


def inner_picture(arrows):
    """The same of the rooms within transfer."""
    inside = [(a, b) for a, b in arrows if a.startswith("transfer") and b.startswith("transfer/")]
    return floors({(a.partition("/")[2] or "the public handles", b.partition("/")[2]) for a, b in inside if a != b})


def floors(arrows):
    below = {room: {b for a, b in arrows if a == room} for arrow in arrows for room in arrow}
    reached = {}

    def reach(room):
        if room not in reached:
            reached[room] = below[room].union(*map(reach, below[room]))
        return reached[room]

    def floor(room):
        return 1 + max(map(floor, below[room]), default=-1)

    width = max(map(len, below))
    lines, last = [], None
    for room in sorted(below, key=lambda room: (-floor(room), room)):
        direct = sorted(other for other in below[room] if not any(other in reach(b) for b in below[room]))
        number = "" if floor(room) == last else str(floor(room))
        last = floor(room)
        lines.append(f"{number:>2}  {room:{width}}{'  ──▶  ' if direct else ''}{', '.join(direct)}".rstrip())
    return "\n".join(lines)


BLOCK = re.compile(r"(<!-- drawn by scripts/check_layers\.py --draw: (\w+) -->\n```text\n).*?(\n```)", re.DOTALL)


def drawn(text, arrows):
    pictures = {"rooms": picture, "transfer": inner_picture}
    return BLOCK.sub(lambda block: block[1] + pictures[block[2]](arrows) + block[3], text)


def check_picture(root, draw=False):
    page = root / "docs" / "architecture.md"
    if not page.is_file():
        return
    text = page.read_text(encoding="utf-8")
    anew = drawn(text, arrows_of(includes_of(root)))
    if draw:
        page.write_text(anew, encoding="utf-8")
    elif text != anew or len(BLOCK.findall(text)) != 2:
        yield "docs/architecture.md: its pictures do not show the includes: run scripts/check_layers.py --draw"


def main():
    default = pathlib.Path(__file__).resolve().parent.parent
    option = sys.argv[1] if sys.argv[1:2] in (["--part"], ["--draw"]) else ""
    arguments = sys.argv[2 if option else 1:]
    root = pathlib.Path(arguments[0]) if arguments else default
    if not any((root / folder).is_dir() for folder in SOURCES):
        sys.exit(f"check_layers.py: no ferry/ in {root}")
    violations = list(check_tree(root))
    if option != "--part":
        violations += check_tables(root)
        # Includes that are forbidden may be a circle, which has no floors.
        violations += [] if violations else check_picture(root, option == "--draw")
    for violation in violations:
        print(violation)
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
