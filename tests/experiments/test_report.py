"""The report: whole, self-contained, and fit for a browser on a phone; its pictures as files."""

import dataclasses
import json
import math
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import pytest
import torch
from matplotlib.figure import Figure
from scipy import stats

from liebayes import data
from liebayes.cli import main
from liebayes.experiments import TrainSettings, open_run, train
from liebayes.experiments.report import gather, report_page, sections, tables, write_pictures, write_report
from liebayes.experiments.report.curves import learning_curve
from liebayes.experiments.report.sections import title_and_lead
from liebayes.experiments.report.style import Picture, inline_svg
from liebayes.experiments.report.tables import _judged, hurt
from liebayes.metrics import auroc

RULES = ("sgd", "additive", "affine", "multiplicative")
SECTIONS = ("summary", "learning", "calibration", "uncertainty", "weights", "features", "uncertain", "settings")
VOID = {"meta", "link", "br", "img", "hr", "input"}
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


def test_titles_are_no_patterns() -> None:
    text = inline_svg(Picture("one", r"x\d1 and \1", "", Figure()))
    assert r'aria-label="x\d1 and \1"' in text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Four short runs on a few digits, and a report about them."""
    digits = data.load("digits")
    small = data.from_tensors(
        digits.train_images[:200],
        digits.train_labels[:200],
        digits.test_images[:80],
        digits.test_labels[:80],
        name="few-digits",
    )
    data.register("few-digits", lambda data_dir, download: small)
    path = tmp_path_factory.mktemp("report")
    try:
        for rule in RULES:
            train(TrainSettings(rule=rule, epochs=2, predictive_samples=4, output=path / rule), dataset=small)
        write_report([path / rule for rule in RULES], path / "report.html")
        yield path
    finally:
        data.unregister("few-digits")


def runs(folder: Path, *rules: str) -> list[Path]:
    return [folder / rule for rule in rules or RULES]


class Page(HTMLParser):
    """Checks that elements close in order, and collects ids, links, text and the cells of every table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.count: Counter[str] = Counter()
        self.text: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] += 1
        for key, value in attrs:
            if key == "id":
                self.ids.append(value or "")
            elif key in ("href", "src", "xlink:href"):
                self.links.append(value or "")
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += f"\n{data}" if self.open[-1] == "small" else data


def test_the_page_is_whole_and_refers_to_nothing_outside(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert set(SECTIONS) <= set(page.ids)
    assert page.count["svg"] == page.count["figcaption"] == page.count["figure"] > 0
    assert "http" not in text
    assert page.links
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {f"#{name}" for name in page.ids}
    assert "prefers-color-scheme: dark" in text
    assert "nan" not in " ".join(page.text).split()
    assert len(text) < 2_000_000


def test_the_page_shows_every_picture(folder: Path) -> None:
    """For each run, or one for all."""
    shown = {name.removeprefix("picture-") for name in Page((folder / "report.html").read_text()).ids if "picture-" in name}
    assert shown == {picture.name for section in sections(gather(runs(folder))) for picture in section.pictures}


def test_the_table_shows_what_training_measured(folder: Path) -> None:
    headings, *rows = Page((folder / "report.html").read_text()).tables[0]
    assert [row[0] for row in rows] == list(RULES)
    for row in rows:
        last = json.loads((folder / row[0] / "metrics.jsonl").read_text().splitlines()[-1])
        for heading, key, form in (("Accuracy", "accuracy", ".2%"), ("NLL", "nll", ".4f"), ("Brier", "brier", ".4f")):
            value, low, _, high = row[headings.index(heading)].replace("\u00a0", "").split()
            assert value == f"{last[f'test_{key}']:{form}}"
            assert float(low.strip("%")) <= float(value.strip("%")) <= float(high.strip("%"))
    _, *points = Page((folder / "report.html").read_text()).tables[1]  # the point beside the average
    assert "sgd" not in [row[0] for row in points]
    for row in points:
        last = json.loads((folder / row[0] / "metrics.jsonl").read_text().splitlines()[-1])
        for cell, value in zip(row[1:3], (last["point_nll"], last["test_nll"]), strict=True):
            shown, low, _, high = cell.split()
            assert shown == f"{value:.4f}"
            assert float(low) < value < float(high)


def test_the_page_says_where_averaging_hurts_and_what_is_decided(folder: Path) -> None:
    """A run against itself is undecided; one whose probabilities are turned about is worse, beyond chance."""
    good, same, bad = gather(runs(folder, "sgd", "additive", "affine"))
    same = dataclasses.replace(good, name="same", number=1)
    turned = dataclasses.replace(good.marginal, probabilities=good.marginal.probabilities.flip(1))
    bad = dataclasses.replace(bad, marginal=turned, point=good.point, name="turned")
    assert not good.against(same, "nll").decided
    assert not any(cell.best for cell in _judged([good, same], good.task.figures[1]))
    assert [cell.best for cell in _judged([good, same, bad], good.task.figures[1])] == [True, True, False]
    [sentence] = hurt([bad])
    assert "makes turned worse" in sentence
    assert hurt([good]) == []


def test_the_lead_names_all_that_tie(folder: Path) -> None:
    found = gather(runs(folder, "sgd", "additive", "affine"))
    for run, (nll, accuracy) in zip(found, [(0.2, 0.9), (0.1, 0.95), (0.3, 0.95)], strict=True):
        run.metrics.update(nll=nll, accuracy=accuracy)
    _, lead = title_and_lead(found)
    lowest, highest = lead.split(". ")[1:]
    assert ("additive" in lowest, "0.1000" in lowest, "affine has" in lowest, "sgd" in lowest) == (True, True, False, False)
    assert ("additive and affine" in highest, "95.00 %" in highest, "sgd" in highest) == (True, True, False)


def test_text_is_escaped(folder: Path) -> None:
    (run,) = gather(runs(folder, "sgd"))
    run = dataclasses.replace(run, name="<b>a & b")
    assert Page(report_page([run])).tables[0][1][0] == "<b>a & b"


def test_signs_are_shown_where_they_are_fixed(folder: Path) -> None:
    ids = re.findall(r'<figure id="picture-([^"]+)"', (folder / "report.html").read_text())
    assert [name for name in ids if name.startswith("signs-")] == ["signs-multiplicative"]


def test_multiplicative_entropy_rises_with_the_mean(folder: Path) -> None:
    """Sec. 5.1: H = log E[θ] + a constant of the base. The additive group's entropy is fixed."""
    additive, multiplicative = gather(runs(folder, "additive", "multiplicative"))
    mean, entropy = multiplicative.mean_and_entropy()
    constant = entropy - mean.log()
    torch.testing.assert_close(constant, constant[:1].expand_as(constant), atol=1e-5, rtol=0)
    assert additive.mean_and_entropy()[1].unique().numel() == 1


def test_features_are_sorted_by_activation_and_weights_are_the_networks(folder: Path) -> None:
    (run,) = gather(runs(folder, "multiplicative"))
    point = run.posterior.point()
    names = [f"1.parametrizations.weight.original{k}" for k in (0, 1)]
    weight = point[names[0]] - point[names[1]]
    torch.testing.assert_close(run.effective_weights[: weight.numel()], weight.flatten())
    pictures = {p.name: p for section in sections([run], image=3) for p in section.pictures}
    assert "test image 3" in " ".join(
        t.get_text() for axes in pictures["features-multiplicative"].figure.axes for t in axes.texts
    )
    expected = 100 * float(point[names[0]].sum() / (point[names[0]].sum() + point[names[1]].sum()))
    assert f"{expected:.0f} %" in pictures["signs-multiplicative"].caption


def test_every_curve_has_numbers_at_its_axis(folder: Path) -> None:
    (run,) = gather(runs(folder, "affine"))
    for change in (1e-4, 0.01, 0.5, 0.99, 0.9999):  # how much of the first value is lost until the last
        run.lines[-1].update({f"{k}_nll": (1 - change) * run.lines[0]["test_nll"] for k in ("test", "point")})
        axes = learning_curve([run], "nll").figure.axes[0]
        low, high = axes.get_ylim()
        assert 2 <= sum(low <= tick <= high for tick in axes.get_yticks()) <= 9


def test_auroc_is_that_of_the_predictions(folder: Path) -> None:
    (run,) = gather(runs(folder, "affine"), ood="noise")
    again = run.posterior.predict(run.dataset.normalize(run.outside.images), 4)
    assert run.auroc_entropy.value == auroc(run.marginal.entropy, again.entropy)
    assert run.outside.name == "noise test images"


def test_every_figure_of_test_data_has_an_interval(folder: Path) -> None:
    """In all tables but those of weights and settings; of entropies it is that of their mean."""
    found = gather(runs(folder, "affine", "multiplicative"))
    for table in (tables.summary(found), tables.averaging(found), tables.outside(found)):
        bare = {"Run", "Rule", "Base", "Epochs", "Training", "Averaging"}
        for row in table.rows:
            for heading, cell in zip(table.headings, row, strict=True):
                assert (heading in bare) == (cell.small == ""), heading
    inside, _ = found[0].entropies
    entropy = found[0].marginal.entropy.double()
    error = float(entropy.std()) / math.sqrt(len(entropy))
    assert inside.value == pytest.approx(float(entropy.mean()))
    assert inside.high - inside.low == pytest.approx(2 * 1.96 * error, rel=0.15)  # of 1,000 resamples


def test_perfect_separation_is_not_certain(folder: Path) -> None:
    """Of n inputs without a single wrong one, the interval is that of Clopper and Pearson."""
    (run,) = gather(runs(folder, "affine"))
    sure = dataclasses.replace(run.marginal, entropy=torch.zeros(80))
    found = dataclasses.replace(run, marginal=sure).auroc_entropy
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(stats.binomtest(80, 80).proportion_ci(0.95).low)


@pytest.mark.parametrize("form", ["png", "svg"])
def test_pictures_as_files_without_changing_the_users_style(
    folder: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 17)
    before = dict(matplotlib.rcParams)
    paths = write_pictures(runs(folder, "multiplicative"), tmp_path, form=form)  # type: ignore[arg-type]
    assert dict(matplotlib.rcParams) == before
    assert len({path.name for path in paths}) == len(paths) > 0
    start = b"\x89PNG" if form == "png" else b"<?xml"
    assert all(path.read_bytes().startswith(start) for path in paths)


def test_a_report_twice_is_the_same_file(folder: Path, tmp_path: Path) -> None:
    first, second = (write_report(runs(folder, "sgd"), tmp_path / name).read_text() for name in ("a.html", "b.html"))
    assert first == second


def test_convolutions_show_filters(folder: Path, tmp_path: Path) -> None:
    small = data.load("few-digits")
    settings = TrainSettings(model="resnet20", rule="multiplicative", epochs=1, predictive_samples=2, output=tmp_path / "conv")
    train(settings, dataset=small)
    (run,) = gather([tmp_path / "conv"])
    names = [p.name for section in sections([run]) for p in section.pictures]
    assert "features-conv" in names
    assert "signs-conv" in names


def test_data_that_are_no_images(tmp_path: Path) -> None:
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    table = data.from_tensors(x[:40], y[:40], x[40:], y[40:], name="plain-table")
    data.register("plain-table", lambda data_dir, download: table)
    try:
        train(TrainSettings(rule="affine", epochs=1, predictive_samples=2, output=tmp_path / "run"), dataset=table)
        text = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    finally:
        data.unregister("plain-table")
    assert 'id="calibration"' in text
    assert 'id="features"' not in text


def test_names_are_shown_as_they_are(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What matplotlib and rich would read as something else: underscores, dollars, brackets; and names alike in files."""
    names = ["_sgd", "cost$x_$", "a[lr=1]", "a[lr=2]", "lr 0.1", "lr-0.1"]
    paths = [str(shutil.copytree(folder / "sgd", tmp_path / name)) for name in names]
    assert main(["compare", *paths]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("_sgd", "cost$x_$", "a[lr=1]", "a[lr=2]"))
    found = gather([Path(path) for path in paths])
    figure = learning_curve(found, "nll").figure
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names
    assert main(["plot", *paths, "--output", str(tmp_path / "pictures")]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.endswith(".png")]
    assert len(set(printed)) == len(printed) == len(list((tmp_path / "pictures").iterdir()))


def test_a_perfect_run_has_no_error_and_data_sets_are_not_compared(folder: Path, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(100) % 2
    images = (labels[:, None] * 4.0 - 2.0) + 0.1 * torch.randn(100, 4, generator=generator)
    easy = data.from_tensors(images, labels, images, labels, name="easy")
    data.register("easy", lambda data_dir, download: easy)
    try:
        train(TrainSettings(rule="sgd", epochs=2, output=tmp_path / "easy"), dataset=easy)
        alone = gather([tmp_path / "easy"])
        assert alone[0].metrics["accuracy"] == 1.0
        assert learning_curve(alone, "error").caption == "0.00 % at the end."
        page = write_report([tmp_path / "easy", folder / "sgd"], tmp_path / "both.html").read_text()
    finally:
        data.unregister("easy")
    assert 'class="best' not in page


def test_a_page_in_the_way_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    assert main(["report", str(folder / "sgd"), "--output", str(tmp_path / "page")]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["page"]


def test_the_program(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "pages" / "two.html"
    assert main(["report", str(folder / "sgd"), str(folder / "affine"), "--output", str(page), "--ood", "rotated"]) == 0
    assert capsys.readouterr().out.strip() == str(page)
    assert "rotated test images" in page.read_text()
    assert main(["plot", str(folder / "sgd"), "--output", str(tmp_path / "pictures"), "--format", "svg"]) == 0
    assert sorted(map(str, (tmp_path / "pictures").iterdir())) == sorted(capsys.readouterr().out.split())
    for words, status, said in (
        (["report"], 2, "at least one run"),
        (["report", str(folder / "sgd"), str(folder / "sgd")], 2, "given twice"),
        (["report", str(folder / "none")], 1, "holds no run"),
        (["report", str(folder / "sgd"), "--ood", "none", "--output", str(page)], 2, "--ood must be one of"),
        (["report", str(folder / "sgd"), "--image", "999", "--output", str(page)], 2, "--image must be"),
        (
            ["report", str(folder / "sgd"), "--output", str(folder / "sgd" / "settings.json" / "x.html")],
            1,
            "cannot be written",
        ),
    ):
        assert main(words) == status
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert "rotated test images" in page.read_text()  # a failure leaves the page there was


PROBE = """<!DOCTYPE html><body style="margin:0">
<iframe id="f" style="width:390px;height:800px;border:0"></iframe><pre id="r"></pre>
<script>
const errors = [], frame = document.getElementById("f");
addEventListener("message", e => errors.push(e.data));
frame.onload = () => {
  const root = frame.contentDocument.documentElement, width = frame.contentWindow.innerWidth;
  const wide = [...frame.contentDocument.querySelectorAll("body *")].filter(e =>
    !e.closest(".scroll, nav, svg *") && e.getBoundingClientRect().right > width + 1).map(e => e.tagName + "#" + e.id);
  const heights = [...frame.contentDocument.querySelectorAll("figure svg")].map(e => e.getBoundingClientRect().height);
  const letters = [...frame.contentDocument.querySelectorAll("figure svg text")].map(e => e.getBoundingClientRect().height);
  document.getElementById("r").textContent = "RESULT" + JSON.stringify({
    errors, wide, width, scroll: root.scrollWidth, title: frame.contentDocument.title,
    lowest: Math.min(...heights), letters: Math.min(...letters), pictures: heights.length}) + "END";
};
frame.src = "report.html";
</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason="no browser of the Chromium family is installed")
def test_in_a_browser_of_a_phones_width(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "report.html", tmp_path / "report.html")
    (tmp_path / "probe.html").write_text(PROBE)
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--enable-logging=stderr",
        "--allow-file-access-from-files", "--virtual-time-budget=20000", "--window-size=800,900",
        f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "probe.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    found = re.search(r"RESULT(\{.*?\})END", done.stdout)
    assert found is not None, done.stderr[-2000:]
    result = json.loads(found[1])
    assert "CONSOLE" not in done.stderr, done.stderr
    assert result["errors"] == []
    assert result["width"] == 390
    assert result["scroll"] <= 390, result
    assert result["wide"] == []
    assert "few-digits: 4 runs" in result["title"]
    assert result["pictures"] == Page((folder / "report.html").read_text()).count["figure"]
    assert result["lowest"] > 100
    assert result["letters"] > 8


def test_the_free_energy_is_that_of_the_definition(folder: Path) -> None:
    """KL by torch.distributions; the expected loss by a loop over draws of our own, within their errors."""
    posterior, dataset, settings = open_run(folder / "additive")
    last = json.loads((folder / "additive" / "metrics.jsonl").read_text().splitlines()[-1])
    prior = torch.distributions.Normal(0.0, (settings.prior_precision or 0.0) ** -0.5)
    N, widths, point = len(dataset.train_labels), posterior.std(), posterior.point()
    pairs = [torch.distributions.Normal(point[name].double(), width.double()) for name, width in widths.items()]
    kl = sum(float(torch.distributions.kl_divergence(q, prior).sum()) for q in pairs)
    assert last["kl"] == pytest.approx(kl / N, rel=1e-5)
    x, losses = dataset.normalize(dataset.train_images), []
    for draw in range(16):
        module = posterior.sample_module(torch.Generator().manual_seed(100 + draw))
        with torch.no_grad():
            losses.append(float(torch.nn.functional.cross_entropy(module(x), dataset.train_labels)))
    error = torch.tensor(losses).std() / 4
    # Two means of independent draws: five of their standard errors.
    assert abs(last["free_energy"] - last["kl"] - sum(losses) / 16) < 5 * math.hypot(error, last["free_energy_error"])
    table = next(t for t in Page((folder / "report.html").read_text()).tables if "Free energy" in t[0])
    names = [row[0] for row in table[1:]]
    assert names == ["additive", "multiplicative"]  # SGD has no density, the affine rule by default no one precision
    [row] = [row for row in table if row[0] == "additive"]
    assert row[3] == f"{last['free_energy']:.4f}"
