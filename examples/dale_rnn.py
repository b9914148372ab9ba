"""A recurrent network of excitatory and inhibitory units that decides which of two noisy inputs is stronger.

    python examples/dale_rnn.py docs/dale-rnn.png

The task is the one monkeys do with moving dots: two channels of noisy evidence, a pause in which nothing is shown, then the
choice. The network obeys Dale's law in every posterior sample. Takes about half a minute on one core, and draws a picture.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import liebayes as lb

COHERENCES = (-0.5, -0.25, -0.12, -0.06, 0.06, 0.12, 0.25, 0.5)
STEPS, ON, OFF = 25, 5, 20  # the evidence is shown from step 5 to 20; the choice is read at the end
UNITS, TRIALS, BATCH, EPOCHS = 50, 2000, 50, 20
RED, BLUE, INK, GREY = "#c8102e", "#1f5fa8", "#222222", "#8c8c8c"


def trials(coherence: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Evidence for two choices, (trials, steps, 2), and the right choice: 1 if the first channel is stronger."""
    means = torch.stack([1 + coherence, 1 - coherence], -1)[:, None] / 2
    noise = torch.randn(len(coherence), OFF - ON, 2, generator=generator)
    evidence = torch.zeros(len(coherence), STEPS, 2)
    evidence[:, ON:OFF] = (means + 0.5 * noise).clamp_min(0)
    return evidence, (coherence > 0).long()


class Decision(nn.Module):
    """Leaky units, r ← 0.8·r + 0.2·ReLU(Wr + Ux + b), and a choice read from their last rates."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(2, UNITS, nonlinearity="relu")
        self.choice = nn.Linear(UNITS, 2)
        nn.init.normal_(self.cell.weight_hh, std=1.2 / UNITS**0.5)  # activity neither dies out nor explodes

    def rates(self, evidence: Tensor) -> Tensor:
        rate, found = evidence.new_zeros(len(evidence), UNITS), []
        for step in evidence.unbind(1):
            rate = 0.8 * rate + 0.2 * self.cell(step, rate)
            found.append(rate)
        return torch.stack(found, 1)

    def forward(self, evidence: Tensor) -> Tensor:
        return self.choice(self.rates(evidence)[:, -1])


def train(evidence: Tensor, right: Tensor, epochs: int = EPOCHS) -> tuple[Decision, lb.Posterior]:
    network = lb.nn.dale(Decision(), excitatory_fraction=0.8)
    # Errors of a recurrent network compound, so its weights are drawn from a narrow base.
    optimizer = lb.MultiplicativeBLR(
        network.parameters(), lr=0.03, data_size=len(evidence), base=lb.bases.LogNormal(0.1), mc_samples=1
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(evidence) // BATCH)
    for _ in range(epochs):
        for batch in torch.randperm(len(evidence)).split(BATCH):
            with optimizer.sampled():
                cross_entropy(network(evidence[batch]), right[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return network, optimizer.posterior(network)


def draw(network: Decision, posterior: lb.Posterior, path: str) -> None:
    """The recurrent weights, sorted by kind; rates in a trial; choices over coherence."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    generator = torch.Generator().manual_seed(2)
    kinds = lb.nn.unit_signs(UNITS, 0.8)
    order = torch.argsort(kinds, descending=True, stable=True)
    weights = network.cell.weight_hh.detach()[order][:, order]
    figure = Figure(figsize=(11, 3.4), layout="constrained", dpi=150)
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1.15, 1.15])

    limit = float(weights.abs().quantile(0.98))
    colours = LinearSegmentedColormap.from_list("signs", [BLUE, "#ffffff", RED])
    left.imshow(weights, cmap=colours, vmin=-limit, vmax=limit)
    left.set(title="recurrent weights: a column is a unit", xticks=[20, 45], yticks=[])
    left.set_xticklabels(["excitatory", "inhibitory"])
    left.tick_params(length=0)

    toward, _ = trials(torch.full((200,), 0.25), generator)
    away, _ = trials(torch.full((200,), -0.25), generator)
    with torch.no_grad():
        rates = torch.stack([network.rates(toward).mean(0), network.rates(away).mean(0)])  # (2, steps, units)
    selective = rates[0, OFF] - rates[1, OFF]
    for kind, colour, name in ((1, RED, "excitatory"), (-1, BLUE, "inhibitory")):
        unit = int(torch.where(kinds == kind, selective, -torch.inf).argmax())
        middle.plot(rates[0, :, unit], color=colour, label=f"{name}, its choice")
        middle.plot(rates[1, :, unit], color=colour, ls=":", label="the other choice")
    middle.axvspan(ON, OFF, color="#eeeeee", zorder=0)
    middle.set(title="the most selective unit of each kind", xlabel="step (evidence in grey)", ylabel="rate")
    middle.legend(frameon=False, fontsize=8)

    grid = torch.linspace(-0.5, 0.5, 11)
    inputs, _ = trials(grid.repeat_interleave(400), generator)
    chosen = posterior.predict(inputs, samples=32).probabilities.argmax(-1).view(11, 400).double().mean(1)
    ideal = (inputs[..., 0].sum(1) > inputs[..., 1].sum(1)).view(11, 400).double().mean(1)
    right.plot(grid, chosen, color=INK, marker="o", ms=4, label="network")
    right.plot(grid, ideal, color=GREY, ls="--", label="ideal observer")
    right.set(title="choices", xlabel="coherence", ylabel="share of choice 1")
    right.legend(frameon=False, fontsize=8)
    for axes in (middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (left, middle, right):
        axes.title.set(fontsize=9, fontweight="bold")
    figure.savefig(path)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    levels = torch.tensor(COHERENCES)[torch.randint(len(COHERENCES), (2 * TRIALS,), generator=generator)]
    evidence, right = trials(levels, generator)
    network, posterior = train(evidence[:TRIALS], right[:TRIALS])
    kinds = lb.nn.unit_signs(UNITS, 0.8)
    assert bool((network.cell.weight_hh.sign() == kinds).all())
    prediction = posterior.predict(evidence[TRIALS:], samples=32)
    ideal = (evidence[TRIALS:, :, 0].sum(1) > evidence[TRIALS:, :, 1].sum(1)).long()
    print(f"posterior predictive: {lb.metrics.accuracy(prediction.probabilities, right[TRIALS:]):.1%} right")
    print(f"ideal observer:       {(ideal == right[TRIALS:]).double().mean():.1%} right")
    if sys.argv[1:]:
        draw(network, posterior, sys.argv[1])


if __name__ == "__main__":
    main()
