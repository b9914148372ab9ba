"""Parts of HTML pages: the page around everything, tables and their cells. Text is escaped here, and only here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ... import __version__
from .css import CSS


def document(title: str, lead: str, links: Sequence[tuple[str, str]], main: str) -> str:
    """A whole page: a title and a sentence under it, a menu of (section, heading), and sections as HTML."""
    menu = "".join(f'<li><a href="#{name}">{escape(heading)}</a></li>' for name, heading in links)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · liebayes</title>
<link rel="icon" href="data:,">
<style>{CSS}</style>
</head>
<body>
<header>
<h1>{escape(title[0].upper() + title[1:])}</h1>
<p class="lead">{escape(lead)}</p>
</header>
<nav aria-label="Sections"><ul>{menu}</ul></nav>
<main>
{main}
</main>
<footer>Made by liebayes {escape(__version__)}: the Lie-group Bayesian learning rule of Kıral, Möllenhoff and Khan (AISTATS
2023). Section numbers are the paper's.</footer>
</body>
</html>
"""


def section(name: str, heading: str, content: str) -> str:
    """A part of the page that the menu leads to."""
    return f'<section id="{name}">\n<h2>{escape(heading)}</h2>\n{content}\n</section>'


def cell(text: str, label: str = "", kind: str = "", small: str = "") -> str:
    """A cell of a table; its label stands beside it on a phone."""
    attributes = (f' data-label="{escape(label)}"' if label else "") + (f' class="{kind}"' if kind else "")
    return f"<td{attributes}>{escape(text)}{f'<small>{escape(small)}</small>' if small else ''}</td>"


def column_heading(text: str, kind: str = "") -> str:
    return f'<th class="{kind}">{escape(text)}</th>' if kind else f"<th>{escape(text)}</th>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table of headings and cells."""
    top = f"<thead><tr>{''.join(head)}</tr></thead>" if head else ""
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<table class="{kind or "plain"}">{top}<tbody>\n{body}\n</tbody></table>'


def scrolling(content: str) -> str:
    """What may be wider than a phone."""
    return f'<div class="scroll">{content}</div>'


def folded(heading: str, content: str) -> str:
    """What a reader opens by a touch."""
    return f"<details><summary>{escape(heading)}</summary>{scrolling(content)}</details>"
