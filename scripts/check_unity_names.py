#!/usr/bin/env python3
"""Finds names that two sources of one target both define for themselves alone: builds with sanitizers
compile several sources of a target as one (cmake/FerryUnity.cmake), where such names collide.

usage: check_unity_names.py [BUILD_DIR]     (default: build/release)

BUILD_DIR/compile_commands.json says which sources a target has. Names are those of anonymous
namespaces, static ones, and constants of other namespaces that are not inline. Functions collide when
their parameters have the same types. Prints one line per collision and exits 1 if there is any.
"""
import collections
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = re.compile(r"CMakeFiles/([^/]+)\.dir/")
UNIT_INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)
# Sources that cmake keeps out of units.
ALONE = re.compile(r"SOURCE\s+(\S+)\s+PROPERTY\s+(?:SKIP_UNITY_BUILD_INCLUSION|COMPILE_\w+)")

# What the scanner must not see: comments, texts and preprocessor lines.
HIDDEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|\bR"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE)
ATTRIBUTE = re.compile(r"\[\[.*?\]\]|__attribute__\s*\(\(.*?\)\)|\balignas\s*\([^)]*\)", re.DOTALL)
TEST = re.compile(r"^(TEST(?:_F|_P)?|INSTANTIATE_TEST_SUITE_P)\s*\(\s*(\w+)\s*,\s*(\w+)")
OPEN_ENUM = re.compile(r"^enum(?!\s+(?:class|struct)\b)")
TYPE = re.compile(r"^(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+(\w+)\s*(?:final\b|:(?!:)|$)")
ALIAS = re.compile(r"^using\s+(\w+)\s*=")
NAMESPACE = re.compile(r"^(?:inline\s+)?namespace\b\s*([\w:\s]*)$")
# A parameter with more than a type: the type, and what follows without being part of it.
PARAMETER = re.compile(r"^(.*[\w>\])&*\s])\b(\w+)$", re.DOTALL)
BUILTIN = {"int", "long", "short", "char", "unsigned", "signed", "double", "float", "bool", "auto",
           "const", "void"}

NEXT_PART = re.compile(r"\s*[,{]")
BRACKET = re.compile(r"[({]")

Name = collections.namedtuple("Name", "scope kind text signature line")


def visible(source):
    """The source with what is hidden blanked out, and lines kept."""
    return HIDDEN.sub(lambda m: "".join("\n" if c == "\n" else " " for c in m.group()), source)


def split_top(text, separator):
    """Parts of the text between separators outside of all brackets."""
    parts, depth, begin = [], 0, 0
    for at, character in enumerate(text):
        if character in "([{<":
            depth += 1
        elif character in ")]}" or (character == ">" and text[at - 1:at] != "-"):
            depth -= 1
        elif character == separator and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]


def without_template(head):
    while head.startswith("template"):
        depth = 0
        for at, character in enumerate(head):
            if character == "<":
                depth += 1
            elif character == ">":
                depth -= 1
                if depth == 0:
                    head = head[at + 1:].strip()
                    break
        else:
            return ""
    return head


def first_outside(text, wanted):
    """Where the first of these characters is that no angle bracket encloses; the length if nowhere."""
    depth = 0
    for at, character in enumerate(text):
        if depth == 0 and character in wanted:
            return at
        depth += {"<": 1, ">": -1}.get(character, 0)
    return len(text)


def types_of(parameters):
    types = []
    for parameter in split_top(parameters, ","):
        parameter = " ".join(split_top(parameter, "=")[0].split())
        named = PARAMETER.match(parameter)
        if named and named[2] not in BUILTIN and named[1].strip() not in ("", "const", "struct"):
            if not named[1].endswith("::"):
                parameter = named[1]
        types.append(re.sub(r"\s*([&*<>,:()])\s*", r"\1", parameter.strip()))
    return ",".join(types)


def closing(text, at):
    """Behind the bracket that closes the one at `at`."""
    depth = 0
    for end in range(at, len(text)):
        if text[end] in "([{":
            depth += 1
        elif text[end] in ")]}":
            depth -= 1
            if depth == 0:
                return end + 1
    return len(text)


def name_of(head, has_body):
    """(kind, name, signature) that a declaration adds to its namespace; None for none of interest."""
    head = without_template(ATTRIBUTE.sub(" ", head).strip())
    test = TEST.match(head)
    if test:
        return "test", f"{test[2]}, {test[3]}", ""
    alias = ALIAS.match(head)
    if alias:
        return "type", alias[1], " ".join(head.split())
    kind = TYPE.match(head)
    if kind:
        return ("type", kind[1], f"a type: {head}") if has_body else None
    if re.match(r"^(namespace|using|typedef|friend|static_assert|extern|class|struct|enum|union)\b", head):
        return None
    value = first_outside(head, "=([{")
    words = re.search(r"(~?\w+|operator\W+)\s*$", head[:value])
    if not words or re.search(r"::\s*$", head[:value][:words.start()]):
        return None  # a member of a class
    if head[:value][:words.start()].strip() == "":
        return None  # a macro's call
    if value < len(head) and head[value] == "(" and "=" not in head[:value]:
        end = closing(head, value)
        return "value", words[1].strip(), types_of(head[value + 1:end - 1])
    return "value", words[1].strip(), "a variable"


def is_own(head, scope):
    """Whether what is declared so is for its file alone."""
    if "(anonymous)" in scope:
        return True
    head = without_template(head)
    return bool(re.match(r"^static\b", head) or
                re.match(r"^(?:constexpr|const)\b(?!.*\*\s*\w+\s*=)", head)
                and "=" in head and "(" not in head.split("=")[0])


def end_of_declaration(text, head, at):
    """Behind the declaration of which a pair of braces ends at `at`: a body, or an initialiser."""
    is_function = "(" in head and "=" not in head.split("(")[0]
    if is_function:
        # Behind braces that initialise a member there is another one, or the body.
        while NEXT_PART.match(text, at):
            at = closing(text, BRACKET.search(text, at).start())
        return at
    while at < len(text) and text[at] != ";":
        at = closing(text, at) if text[at] in "([{" else at + 1
    return at + 1


def names_in(source):
    text = visible(source)
    scopes, at, begin = [], 0, 0
    while at < len(text):
        character = text[at]
        if character in "([":
            at = closing(text, at)
            continue
        if character not in ";{}":
            at += 1
            continue
        head = text[begin:at].strip()
        line = text.count("\n", 0, begin + len(text[begin:at]) - len(text[begin:at].lstrip())) + 1
        opened = at
        at += 1
        if character == "}":
            if scopes:
                scopes.pop()
        elif character == "{":
            namespace = NAMESPACE.match(head)
            if namespace or head in ("extern", "extern  "):
                scopes.append((namespace[1].strip() or "(anonymous)") if namespace else "")
            else:
                at = end_of_declaration(text, head, closing(text, at - 1))
        begin = at
        if character == "}" or not head or (character == "{" and NAMESPACE.match(head)):
            continue
        scope = "::".join(part for part in scopes if part)
        if not is_own(head, scope):
            continue
        found = name_of(head, character == "{")
        if found:
            yield Name(scope, *found, line)
        if character == "{" and OPEN_ENUM.match(head):
            for one in re.findall(r"(?:^|,)\s*(\w+)", text[opened + 1:closing(text, opened) - 1]):
                yield Name(scope, "value", one, "a variable", line)


def sources_alone(root):
    for lists in root.rglob("CMakeLists.txt"):
        if "build" in lists.relative_to(root).parts:
            continue
        for source in ALONE.findall(lists.read_text(encoding="utf-8")):
            yield lists.parent / source


def targets_of(build, root):
    """The sources that each target may compile as one."""
    alone = set(sources_alone(root))
    targets = collections.defaultdict(set)
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        target = TARGET.search(entry.get("output", entry["command"]))
        file = pathlib.Path(entry["file"])
        if not target or file.suffix != ".cc" or "verify_interface" in target[1]:
            continue
        if "unity" in file.parts:
            sources = [root / one for one in UNIT_INCLUDE.findall(file.read_text(encoding="utf-8"))]
        else:
            sources = [file]
        targets[target[1]] |= {one for one in sources if one.is_relative_to(root) and one not in alone
                               and not one.is_relative_to(build)}
    return targets


def collisions(sources, root, cache):
    """A line for each name that is in several of these sources."""
    seen = {}
    for source in sorted(sources):
        if source not in cache:
            cache[source] = list(names_in(source.read_text(encoding="utf-8")))
        for name in cache[source]:
            place = f"{source.relative_to(root)}:{name.line}"
            for other, there, where in seen.get((name.scope, name.kind, name.text), []):
                functions = not ("a variable" in (name.signature, other.signature))
                same = name.signature == other.signature
                is_alias = name.kind == "type" and name.signature.startswith("using")
                if there == source or (is_alias and same):
                    continue
                if name.kind == "value" and functions and not same:
                    continue
                yield f"{place}: '{name.text}' is also in {where}"
                break
            seen.setdefault((name.scope, name.kind, name.text), []).append((name, source, place))


def main():
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release").resolve()
    root = pathlib.Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else ROOT
    if not (build / "compile_commands.json").exists():
        print(f"skipped: no {build}/compile_commands.json: configure that build first")
        return 77
    cache, found = {}, set()
    for target, sources in sorted(targets_of(build, root).items()):
        for line in collisions(sources, root, cache):
            found.add(f"{line}: builds with sanitizers compile both as one (target {target}); "
                      "give one of them another name")
    for line in sorted(found):
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
