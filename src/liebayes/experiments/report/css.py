"""The look of the page: one column on a phone, two on a desk; light and dark as the reader's system has it."""

from __future__ import annotations

from .style import DARK_RUN_COLOURS, INK, MUTED, OUTSIDE, PAPER, RUN_COLOURS, WRONG


def _variables(values: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in values.items())


_LIGHT = {"ink": INK, "muted": MUTED, "paper": PAPER, "outside": OUTSIDE, "wrong": WRONG, "line": "#e3e3df"}
_LIGHT |= {f"run-{i}": c for i, c in enumerate(RUN_COLOURS)}
_DARK = {"ink": "#e9e8e4", "muted": "#9b9da3", "paper": "#17181a", "outside": "#a9acb3", "wrong": "#ff8a70", "line": "#303236"}
_DARK |= {f"run-{i}": c for i, c in enumerate(DARK_RUN_COLOURS)}

CSS = (
    f":root {{ color-scheme: light dark; {_variables(_LIGHT)} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(_DARK)} }} }}\n"
    """
:root {
  --serif: "Iowan Old Style", Charter, "Palatino Linotype", Palatino, "Book Antiqua", Georgia, serif;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 1.0625rem/1.55 var(--serif); }
main, header, nav, footer { max-width: 70rem; margin-inline: auto; padding-inline: clamp(1rem, 4vw, 2.5rem); }
header { padding-block: clamp(2rem, 6vw, 4rem) 0.5rem; }
h1 { font-size: clamp(1.9rem, 5vw, 2.9rem); line-height: 1.1; font-weight: 500; letter-spacing: -0.015em; margin: 0 0 0.6rem; }
h2 { font-size: 1.6rem; line-height: 1.2; font-weight: 500; letter-spacing: -0.01em; margin: 0 0 0.3rem; }
h3 { font: 600 0.95rem/1.3 var(--sans); margin: 0 0 0.6rem; overflow-wrap: anywhere; }
p { margin: 0 0 1rem; max-width: 42rem; overflow-wrap: break-word; }
.lead { color: var(--muted); }
nav { position: sticky; top: 0; z-index: 1; background: var(--paper); border-bottom: 1px solid var(--line); }
nav ul { display: flex; gap: 1.25rem; margin: 0; padding: 0.65rem 0; list-style: none; }
nav ul { overflow-x: auto; scrollbar-width: none; }
nav a { font: 0.875rem/1.4 var(--sans); color: var(--muted); text-decoration: none; white-space: nowrap; }
nav a:hover, nav a:focus-visible { color: var(--ink); }
section { padding-top: 3.25rem; scroll-margin-top: 1rem; }
.pictures { display: grid; gap: 2.75rem 3.5rem; margin-top: 1.5rem; }
.pictures { grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; min-width: 0; }
figure svg { display: block; width: 100%; height: auto; max-width: 34rem; }
figcaption { margin-top: 0.65rem; color: var(--muted); font-size: 0.9375rem; line-height: 1.45; max-width: 34rem; }
table { border-collapse: collapse; font: 0.875rem/1.35 var(--sans); font-variant-numeric: tabular-nums; }
th, td { padding: 0.55rem 0.9rem 0.55rem 0; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 500; color: var(--muted); white-space: nowrap; }
th:first-child, td:first-child, .word { text-align: left; }
td.best { font-weight: 700; }
td small { display: block; color: var(--muted); font-size: 0.8125rem; font-weight: 400; }
.run { font-weight: 600; white-space: nowrap; }
.run::before { content: ""; display: inline-block; width: 0.65em; height: 0.65em; border-radius: 50%; }
.run::before { margin-right: 0.5em; background: var(--c); }
.cards { margin-top: 1.25rem; }
.scroll { overflow-x: auto; max-width: 100%; margin-top: 1.5rem; }
.summary { width: 100%; }
.note { font-size: 0.875rem; color: var(--muted); margin-top: 0.75rem; }
details { margin-top: 1.25rem; }
summary { cursor: pointer; font: 0.9375rem/1.4 var(--sans); color: var(--muted); }
code { font-size: 0.875em; overflow-wrap: anywhere; }
footer { padding-block: 3.5rem 3rem; color: var(--muted); font-size: 0.875rem; }
@media (max-width: 52rem) {
  .cards, .cards tbody { display: block; width: 100%; }
  .cards thead { display: none; }
  .cards tr { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 0.85rem 0.75rem; }
  .cards tr { padding: 1rem 0; border-bottom: 1px solid var(--line); }
  .cards td { display: block; padding: 0; border: 0; text-align: left; }
  .cards td:first-child { grid-column: 1 / -1; font-size: 1rem; }
  .cards .run { white-space: normal; overflow-wrap: anywhere; }
  .cards td[data-label]::before { content: attr(data-label); display: block; color: var(--muted); }
  .cards td[data-label]::before { font-size: 0.75rem; font-weight: 400; }
}
@media print {
  nav { display: none; }
  figure { break-inside: avoid; }
}
"""
)
