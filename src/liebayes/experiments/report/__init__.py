"""Reports: what runs predict and what they learned, as one page or as files. The only room that needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...atomic_write import atomic_write
from ..run_directory import writable
from .evidence import Evidence, gather
from .page import html
from .sections import Section, sections
from .style import Format, Picture, save


def write_report(
    runs: Sequence[Path], output: Path, *, ood: str | None = None, image: int = 0, data_dir: Path | None = None
) -> Path:
    """Writes the page about some runs.

    Args:
        runs: run directories.
        output: the HTML file. It appears whole or not at all.
        ood: images from outside: a data set, or test images shuffled, rotated, inverted or replaced by noise.
        image: the test image that sorts the features.
        data_dir: where data sets are, if not where the runs had them.
    """
    with writable(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    found = gather(runs, ood, data_dir)
    text = html(found, sections(found, image))
    with writable(output), atomic_write(output) as partial:
        partial.write_text(text, encoding="utf-8")
    return output


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


__all__ = ["Evidence", "Picture", "Section", "gather", "sections", "write_pictures", "write_report"]
