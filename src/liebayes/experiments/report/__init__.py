"""Reports: what runs predict and what they learned, as one page or as picture files. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...atomic_write import atomic_write
from ..run_directory import writable
from . import tables
from .evidence import Evidence, gather
from .page import Section, html
from .sections import sections, title_and_lead
from .style import Format, Picture, save


def write_report(
    runs: Sequence[Path], output: Path, *, ood: str | None = None, image: int = 0, data_dir: Path | None = None
) -> Path:
    """Writes a page about some runs.

    Args:
        runs: run directories.
        output: the HTML file. It appears complete or not at all.
        ood: out-of-distribution images: a data set, or test images shuffled, rotated, inverted or replaced by noise.
        image: the test image by whose activations the features are sorted.
        data_dir: the folder with the data sets, if it is not the one the runs used.
    """
    with writable(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    text = report_page(gather(runs, ood, data_dir), image)
    with writable(output), atomic_write(output) as partial:
        partial.write_text(text, encoding="utf-8")
    return output


def report_page(found: Sequence[Evidence], image: int = 0) -> str:
    """The page as HTML."""
    parts = [
        Section("summary", "Summary", tables=[tables.summary(found)]),
        *([_averaging(found)] if not all(run.is_point for run in found) else []),
        *_free_energy(found),
        *(section for section in sections(found, image) if section.pictures),
        Section("settings", "Settings", tables=tables.settings(found)),
    ]
    return html(*title_and_lead(found), parts)


def _averaging(found: Sequence[Evidence]) -> Section:
    lead = "What predictions gain from averaging over samples of the weights instead of using the point estimate."
    return Section("averaging", "Point and average", lead, [tables.averaging(found)], points=tables.hurt(found))


def _free_energy(found: Sequence[Evidence]) -> list[Section]:
    lead = "What training minimises: the loss expected under the posterior, plus how far it has gone from the prior."
    table = tables.energies(found)
    return [] if table is None else [Section("free-energy", "Free energy", lead, [table])]


def write_pictures(
    runs: Sequence[Path],
    output: Path,
    *,
    form: Format = "png",
    ood: str | None = None,
    image: int = 0,
    data_dir: Path | None = None,
) -> list[Path]:
    """Writes the pictures of the same page as files into a directory."""
    with writable(output):
        output.mkdir(parents=True, exist_ok=True)
    found = gather(runs, ood, data_dir)
    with writable(output):
        return [save(picture, output, form) for section in sections(found, image) for picture in section.pictures]


__all__ = ["Evidence", "Picture", "Section", "gather", "report_page", "sections", "write_pictures", "write_report"]
