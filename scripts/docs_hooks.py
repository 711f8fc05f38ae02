"""Hooks of mkdocs: what the documents refer to outside of docs/ becomes a part of the site.

Pages of the checkout's root (README.md, CONTRIBUTING.md …) become pages below project/. Other files that a
page links to are copied below source/ and shown as text. A folder's link becomes its name. A <picture> with a
dark and a light chart becomes two images, of which the site's palette shows one. Pages that the navigation of
mkdocs.yml leaves out are added to its last section.
"""
import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?P<text>\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
PICTURE = re.compile(r"<picture>\s*<source [^>]*srcset=\"([^\"]+)\">\s*<img alt=\"([^\"]*)\" src=\"([^\"]+)\">\s*"
                     r"</picture>")
CODE = re.compile(r"(^```.*?^```\s*$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
PROJECT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "VERSIONING.md", "deploy/README.md")
copied = set()


def project_page(path):
    """Where a document of the root is on the site."""
    return "project/" + path.lower().replace("/", "_")


def place_of(path):
    """A path of the checkout as one of the site, or nothing for a folder."""
    if path in PROJECT:
        return project_page(path)
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_file():
        copied.add(path)
        return f"source/{path}.txt"
    return None


def rewritten(markdown, source, page):
    """The text with its links right for the site; `source` is its path in the checkout, `page` on the site."""
    def link(found):
        target = found["target"]
        if re.match(r"[a-z][a-z0-9+.-]*:|/", target):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path.startswith("docs/") and source.startswith("docs/"):
            return found[0]
        place = place_of(path)
        if place is None:
            return found["text"][1:-1]
        return f"{found['text']}({posixpath.relpath(place, posixpath.dirname(page) or '.')}{found['anchor'] or ''})"

    def picture(found):
        return "\n".join(f"![{found[2]}]({target}#only-{theme})" for target, theme in
                         ((found[3], "light"), (found[1], "dark")))

    def images(text):
        return PICTURE.sub(picture, text)

    parts = CODE.split(images(markdown))
    return "".join(part if index % 2 else LINK.sub(link, part) for index, part in enumerate(parts))


def pages_of(nav):
    for entry in nav:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from pages_of(value) if isinstance(value, list) else [value]


def on_config(config):
    """Adds pages that the navigation leaves out to its last section."""
    known = set(pages_of(config.nav))
    last = next(iter(config.nav[-1].values()))
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs").as_posix()
        if name not in known:
            last.append(name)
    return config


def on_files(files, config):
    for path in PROJECT:
        if (ROOT / path).is_file():
            text = (ROOT / path).read_text(encoding="utf-8")
            files.append(File.generated(config, project_page(path), content=rewritten(text, path, project_page(path))))
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs").as_posix()
        rewritten(path.read_text(encoding="utf-8"), f"docs/{name}", name)  # notes which files are wanted
    for path in sorted(copied):
        content = (ROOT / path).read_bytes()
        files.append(File.generated(config, f"source/{path}.txt", content=content))
    return files




def on_page_markdown(markdown, page, config, files):
    name = page.file.src_uri
    return markdown if name.startswith("project/") else rewritten(markdown, f"docs/{name}", name)
