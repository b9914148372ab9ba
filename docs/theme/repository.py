"""What the site has beside docs/: the README as its first page, linked files of the repository, and the API reference.

A link works on GitHub and on the site: a page of docs/ names a file outside it as `../FILE`, and the site has that file as
`FILE`, beside the pages. A link whose text is the name of a page's file has the page's title there.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)#\s]+)")
LAUNCHED = re.compile(r"^(```python) torchrun$", re.MULTILINE)
NAMED = re.compile(r"\[[\w./-]+\.md(\]\()([^)#\s]+\.md)")
OUTSIDE = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", "CITATION.cff"]

API = {
    "optim": "Optimizers",
    "variational": "fit",
    "posterior": "Posteriors and predictions",
    "groups": "Groups",
    "bases": "Bases",
    "rule": "Families and the rule",
    "nn": "Networks",
    "data": "Data",
    "metrics": "Metrics",
    "baselines": "Baselines",
    "integrations": "Trainers and other libraries",
    "experiments": "The program from Python",
}
"""The pages of the reference: the public names of a package of liebayes."""
BESIDE = {"posterior": ["liebayes.prediction"]}
ONE_FUNCTION = "\n    options: {show_root_heading: true, show_root_toc_entry: true}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the API pages, and every file of the repository that a page links to, as do the pages that this adds."""
    listing = "\n".join(f"| [{title}]({name}.md) | `liebayes.{name}` |" for name, title in API.items())
    files.append(File.generated(config, "api/index.md", content=f"# The API\n\n| | |\n|---|---|\n{listing}\n"))
    for name, title in API.items():
        files.append(File.generated(config, f"api/{name}.md", content=f"# {title}\n\n{_reference(name)}"))
    pending = [*OUTSIDE, *_linked("docs", Path(config.docs_dir))]
    while pending:
        name = pending.pop()
        if name.startswith("docs/") or _place(name) in files.src_uris or not (ROOT / name).is_file():
            continue
        files.append(File.generated(config, _place(name), abs_src_path=str(ROOT / name)))
        if name.endswith(".md"):
            pending += _targets(name, (ROOT / name).read_text(encoding="utf-8"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links between docs/ and the rest of the repository, as the site has them; and what only GitHub reads as we mean it.

    A fence with two words is no fence to mkdocs, and a figure should not part from its error at the end of a line.
    """
    markdown = LAUNCHED.sub(r"\1", markdown).replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
    home = _home(page.file.src_uri)
    if home is None:
        return markdown
    here = posixpath.dirname(page.file.src_uri)

    def as_on_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(home), link[2]))
        return link[1] + posixpath.relpath(_place(target), here or ".")

    def with_title(link: re.Match[str]) -> str:
        name = posixpath.normpath(posixpath.join(posixpath.dirname(home), link[2]))
        heading = re.search(r"^# (.+)$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        return link[0] if heading is None else f"[{heading[1]}{link[1]}{link[2]}"

    return LINK.sub(as_on_site, NAMED.sub(with_title, markdown))


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    """Without an address of its own the site cannot have a page for missing ones: all links in it would be dead."""
    return "" if template_name == "404.html" and not config.site_url else output


def _reference(name: str) -> str:
    """What mkdocstrings is to show. A function with the name of its file is hidden behind the file, so it is named itself."""
    folder = ROOT / "src" / "liebayes" / name
    modules = sorted(file.stem for file in folder.glob("*.py") if not file.stem.startswith("_"))
    listed = re.search(r"^__all__ = (\[.*?\])", (folder / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if listed is None:  # its modules are imported one by one, because each needs another package
        return "\n\n".join(f"## {module}\n\n::: liebayes.{name}.{module}" for module in modules)
    public = ast.literal_eval(listed[1])
    own = [f"liebayes.{name}.{module}.{module}{ONE_FUNCTION}" for module in modules if module in public]
    return "\n\n".join(f"::: {shown}" for shown in [f"liebayes.{name}", *own, *BESIDE.get(name, [])])


def _home(uri: str) -> str | None:
    """Where the repository has the page that the site has at `uri`; None for pages that only the site has."""
    if uri == "index.md":
        return "README.md"
    places = (f"docs/{uri}", uri)
    return next((place for place in places if (ROOT / place).is_file()), None)


def _place(name: str) -> str:
    """Where the site has a file of the repository."""
    return "index.md" if name == "README.md" else name.removeprefix("docs/")


def _linked(folder: str, path: Path) -> list[str]:
    pages = sorted(path.glob("*.md"))
    return [name for page in pages for name in _targets(f"{folder}/{page.name}", page.read_text(encoding="utf-8"))]


def _targets(name: str, text: str) -> list[str]:
    """The files of the repository that a page links to."""
    return [posixpath.normpath(posixpath.join(posixpath.dirname(name), link[2])) for link in LINK.finditer(text)]
