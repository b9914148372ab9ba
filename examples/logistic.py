"""Posteriors of a logistic regression on real data, for several groups and bases.

    python examples/logistic.py

Scikit-learn's breast cancer data, 31 weights with a standard normal prior. First every pair of group and base is fitted to
all of the data and compared with the stored reference posterior, a long MCMC run; then to 70 % of it, and judged by the
held-out rest. Ends in a table and a picture in demo-output/.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer
from torch import Tensor
from torch.nn.functional import softplus

import liebayes as lb
from liebayes.bases import Base, Laplace, Normal, StudentT
from liebayes.groups import Additive, DiagonalAffine, LieGroup, TriangularAffine

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = Path("demo-output")
PAIRS: list[tuple[LieGroup, Base, str]] = [
    (Additive(), Normal(0.3), "Normal(0.3)"),
    (DiagonalAffine(), Normal(), "Normal"),
    (DiagonalAffine(), Laplace(), "Laplace"),
    (TriangularAffine(), Normal(), "Normal"),
    (TriangularAffine(), StudentT(8.0), "StudentT(8)"),
]
COLOURS = ["#999999", "#4393c3", "#92c5de", "#c8102e", "#f4a582"]


def data() -> tuple[Tensor, Tensor, list[str]]:
    """The design matrix with the intercept last, the labels, and the names of the weights."""
    source = load_breast_cancer()
    features = torch.tensor(source.data)
    features = (features - features.mean(0)) / features.std(0, correction=0)
    x = torch.cat([features, torch.ones(len(features), 1)], 1).float()
    return x, torch.tensor(source.target, dtype=torch.float32), [*map(str, source.feature_names), "intercept"]


def negative_log_joint(x: Tensor, y: Tensor):
    def loss(w: Tensor) -> Tensor:
        logits = x @ w
        return softplus(logits).sum() - y @ logits + 0.5 * w.square().sum() + 0.5 * len(w) * math.log(2 * math.pi)

    return loss


def elbo(q: lb.Family, loss, draws: int = 4000) -> float:
    theta = q.sample((draws,), generator=torch.Generator().manual_seed(1))
    return float(q.entropy() - torch.func.vmap(loss)(theta).mean())


def held_out_nll(q: lb.Family, x: Tensor, y: Tensor, draws: int = 2000) -> float:
    """Minus the mean log predictive probability, averaged over the posterior before the logarithm."""
    logits = q.sample((draws,), generator=torch.Generator().manual_seed(2)) @ x.mT
    log_likelihood = y * logits - softplus(logits)
    return -float((torch.logsumexp(log_likelihood, 0) - math.log(draws)).mean())


def picture(fits: list[tuple[str, lb.Family]], mcmc: dict, names: list[str], path: Path) -> None:
    mean, sd = torch.tensor(mcmc["mean"]), torch.tensor(mcmc["sd"])
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12.5, 6.2), gridspec_kw={"width_ratios": [1.35, 1]}, layout="constrained"
    )
    order = mean.argsort()
    rows = torch.arange(len(order))
    left.errorbar(mean[order], rows, xerr=2 * sd[order], fmt="none", ecolor="#dddddd", elinewidth=7, zorder=1)
    left.plot([], [], color="#dddddd", lw=7, label="MCMC, ± 2 sd")
    chosen = [fits[1], fits[3]]
    for (label, q), colour, offset in zip(chosen, (COLOURS[1], COLOURS[3]), (0.16, -0.16), strict=True):
        left.errorbar(
            q.mean[order], rows + offset, xerr=2 * q.stddev[order], fmt="o", ms=3, color=colour, elinewidth=1.5, label=label
        )
    left.set_yticks(rows, [names[i] for i in order], fontsize=7.5)
    left.set_xlabel("weight")
    left.set_title("The posterior of every weight", loc="left", fontsize=11)
    left.axvline(0, color="#222222", lw=0.6)
    left.legend(frameon=False, fontsize=9, loc="upper left")
    for (label, q), colour in zip(fits, COLOURS, strict=True):
        history = q.history
        assert history is not None
        # One step's samples are noisy; the last twenty entries of the history together are not.
        smooth = [
            sum(part) / len(part) for part in (history.objective[max(0, k - 19) : k + 1] for k in range(len(history.step)))
        ]
        right.plot(history.step, smooth, color=colour, lw=1.5, label=label)
    right.set(xscale="log", ylim=(50, 100), xlabel="step", ylabel="E[loss] − H, mean of the last 20 entries")
    right.set_title("The way there", loc="left", fontsize=11)
    right.legend(frameon=False, fontsize=9)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    torch.set_num_threads(1)  # tensors this small are not worth a second one
    console = Console()
    console.print("[bold]liebayes[/]: choose a group and a base, and have a variational posterior.")
    x, y, names = data()
    console.print(f"Logistic regression on {len(y)} cases with {x.shape[1]} weights.\n")
    mcmc = json.loads((ROOT / "tests" / "oracles" / "breast_cancer_mcmc.json").read_text())
    mean, sd = torch.tensor(mcmc["mean"]), torch.tensor(mcmc["sd"])
    shuffled = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = shuffled[: int(0.7 * len(y))], shuffled[int(0.7 * len(y)) :]

    table = Table(
        title="Breast cancer data, logistic regression",
        caption="Δ: largest deviation over all weights from MCMC (640,000 draws)",
    )
    table.add_column("group")
    table.add_column("base")
    for name in ("ELBO", "mean\nΔ/sd", "sd\nΔ", "held-out\nNLL", "time\n(s)"):
        table.add_column(name, justify="right")
    fits = []
    for group, base, base_name in PAIRS:
        name = type(group).__name__
        console.print(f"  fitting {name} on {base_name} ...")
        loss = negative_log_joint(x, y)
        began = time.perf_counter()
        q = lb.fit(loss, group, base, torch.zeros(x.shape[1]))
        seconds = time.perf_counter() - began
        partial = lb.fit(negative_log_joint(x[train], y[train]), group, base, torch.zeros(x.shape[1]))
        table.add_row(
            name,
            base_name,
            f"{elbo(q, loss):.2f}",
            f"{float(((q.mean - mean) / sd).abs().max()):.3f}",
            f"{float((q.stddev / sd - 1).abs().max()):.1%}",
            f"{held_out_nll(partial, x[test], y[test]):.4f}",
            f"{seconds:.1f}",
        )
        fits.append((f"{name} on {base_name}", q))
    console.print()
    console.print(table)
    console.print("Additive and diagonal groups cannot see correlations, and their widths come out too small;")
    console.print("the triangular group finds them, from the same loss and the same defaults.\n")
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / "breast-cancer.png"
    picture(fits, mcmc, names, path)
    console.print(f"Picture written to [bold]{path}[/]")


if __name__ == "__main__":
    main()
