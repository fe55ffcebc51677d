"""Links that leave docs/, such as `../examples/patterns/cron.py`, lead somewhere on the site too.

In the repository they are plain relative links. For the site, each file that a page links to becomes a page of its own
below `source/`: code as it stands, Markdown with its links followed in turn, a folder as its README or as a list. A
link to what is not there is left as it is, and then fails a strict build.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)")
FENCE = re.compile(r"^(```|~~~).*?^\1[`~]*$", flags=re.S | re.M)
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for every file that the documentation links to, and for those that they link to."""
    to_read = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    known = set(to_read)
    while to_read:
        path = to_read.pop()
        if not path.endswith(".md"):
            continue
        for target in _targets(path):
            if target in known or target.startswith("docs/"):
                continue
            known.add(target)
            to_read.append(target)
            files.append(File.generated(config, _uri(target), content=NOT_SEARCHED + _content(target)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Turns links between files of the repository into links between pages of the site."""
    uri = page.file.src_uri
    path = uri.removeprefix("source/") if uri.startswith("source/") else f"docs/{uri}"
    if uri.startswith("source/") and not (ROOT / path).is_file():
        return markdown  # code, or the list of a folder

    def rewritten(link: re.Match[str]) -> str:
        target = _resolved(path, link[1])
        return link[0] if target is None else posixpath.relpath(_uri(target), posixpath.dirname(uri))

    pieces: list[str] = []
    at = 0
    for fence in FENCE.finditer(markdown):
        pieces += [LINK.sub(rewritten, markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*pieces, LINK.sub(rewritten, markdown[at:])])


def _targets(path: str) -> Iterator[str]:
    text = FENCE.sub("", (ROOT / path).read_text())
    for link in LINK.findall(text):
        target = _resolved(path, link)
        if target is not None:
            yield target


def _resolved(path: str, link: str) -> str | None:
    """The file of the repository that a link in `path` names; a folder's README, or the folder."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    if target.startswith("..") or not (ROOT / target).exists():
        return None
    readme = f"{target}/README.md"
    return readme if (ROOT / readme).is_file() else target


def _uri(target: str) -> str:
    """Where a file of the repository is on the site."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"source/{target}" if target.endswith(".md") else f"source/{target}.md"


def _content(target: str) -> str:
    file = ROOT / target
    if file.is_dir():
        names = sorted(each.name for each in file.iterdir() if not each.name.startswith(("_", ".")))
        return f"# {target}\n\n" + "".join(f"- `{name}`\n" for name in names)
    if target.endswith(".md"):
        return file.read_text()
    return f"# {target}\n\n~~~~~~~~ {file.suffix.lstrip('.')}\n{file.read_text()}\n~~~~~~~~\n"
