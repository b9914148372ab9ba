"""The site: it builds without a warning, no link in it is dead, and it loads nothing from elsewhere."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from support.once_per_session import once_per_session
from support.pages import PAGES, ROOT
from support.processes import TIMEOUT

import liebayes as lb

pytest.importorskip("material")
pytest.importorskip("mkdocstrings_handlers.python")


class Links(HTMLParser):
    """What a page links to, loads, and can be linked to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.linked: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.linked.append(given["href"])
        self.loaded += [given["src"]] if "src" in given else []
        self.loaded += [given["href"]] if tag == "link" else []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Links]:
    """Every page of the built site."""

    def build(folder: Path) -> None:
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder / "site")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    folder = once_per_session(tmp_path_factory, "site", build) / "site"
    return {page: Links(page) for page in folder.rglob("*.html")}


def test_no_link_is_dead(site: dict[Path, Links]) -> None:
    dead = []
    for page, links in site.items():
        for link in links.linked + links.loaded:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            known = target in site and parts.fragment and parts.fragment not in ("", "__skip")
            if not target.is_file() or (known and unquote(parts.fragment) not in site[target].anchors):
                dead.append(f"{page.name}: {link}")
    assert not dead
    assert sum(len(links.linked) for links in site.values()) > 1000  # they were found


def test_nothing_is_loaded_from_elsewhere(site: dict[Path, Links]) -> None:
    assert not [(page.name, name) for page, links in site.items() for name in links.loaded if urlsplit(name).netloc]
    for page in site:
        text = page.read_text(encoding="utf-8")
        assert "fonts.googleapis" not in text
        assert "unpkg.com" not in text


def test_links_have_titles_not_names_of_files(site: dict[Path, Links]) -> None:
    found = {page.name: re.findall(r">([\w./-]+\.md)</a>", page.read_text(encoding="utf-8")) for page in site}
    assert not {name: texts for name, texts in found.items() if texts}


def test_no_markdown_is_left(site: dict[Path, Links]) -> None:
    """A fence or a box that the site does not know stands there as text, and so does what was meant to be in it."""
    for page in site:
        text = page.read_text(encoding="utf-8")
        assert "```" not in text, page.name
        assert "<li>[ ]" not in text, page.name
        assert not re.search(r"<p>(from [\w.]+ )?import \w", text), page.name


def test_code_of_the_reference_is_run(site: dict[Path, Links]) -> None:
    """Examples are doctests; other blocks are formulas and tables, no Python that nobody has run."""
    for page in site:
        if page.parent.name == "api":
            text = page.read_text(encoding="utf-8")
            text = re.sub(r"doc-signature.*?</pre>", "", text, flags=re.DOTALL)
            for block in re.findall(r"<pre>.*?</pre>", text, flags=re.DOTALL):
                code = textwrap.dedent(unescape(re.sub(r"<[^>]*>", "", block)))
                assert not is_program(code), f"{page.name}: {code}"


def is_program(code: str) -> bool:
    """Whether a text is Python that does something: it imports, assigns or calls."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return False
    return any(isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign, ast.Call)) for node in ast.walk(tree))


def test_every_page_is_there(site: dict[Path, Links]) -> None:
    names = {page.name for page in site}
    assert {Path(page).stem + ".html" for page in PAGES} - {"README.html"} <= names


@pytest.mark.parametrize("room", ["groups", "bases", "rule", "optim", "nn", "data", "metrics", "baselines"])
def test_the_reference_has_every_public_name(site: dict[Path, Links], room: str) -> None:
    [page] = [page for page in site if page.parts[-2:] == ("api", f"{room}.html")]
    shown = {anchor.rpartition(".")[2] for anchor in site[page].anchors}
    found = {name: getattr(getattr(lb, room), name) for name in getattr(lb, room).__all__}
    public = {name for name, value in found.items() if inspect.isclass(value) or inspect.isfunction(value)}
    assert not public - shown


def test_the_reference_has_fit_and_posteriors(site: dict[Path, Links]) -> None:
    shown = {anchor.rpartition(".")[2] for page in site if page.parent.name == "api" for anchor in site[page].anchors}
    assert {"fit", "Fit", "FitError", "Posterior", "predict", "ClassPrediction", "TrainSettings"} <= shown
