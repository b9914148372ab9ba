"""`fit` on fourteen classical posteriors, beside Pyro's and NumPyro's guides and multi-path Pathfinder at equal CPU seconds.

    python benchmarks/posteriors.py reference       # long NUTS, or exact answers: results/posteriors/reference.json
    python benchmarks/posteriors.py ours            # three families, and float32: results/posteriors/ours.json
    python benchmarks/posteriors.py fresh           # at seeds on which nothing was chosen: results/posteriors/fresh.json
    python benchmarks/posteriors.py best            # the best Gaussian of each family, by L-BFGS over fixed draws
    python benchmarks/posteriors.py pyro            # needs pyro-ppl
    python benchmarks/posteriors.py jax             # needs jax, numpyro and blackjax
    python benchmarks/posteriors.py picture         # docs/posteriors.png
    python benchmarks/posteriors.py judge           # whether what is claimed of `fit` holds of what is stored

`--models` and `--methods` choose; what is not run again keeps its stored figure. Every method starts at the same point, in
float64, with its defaults. "Right" means: every mean within 0.1 standard deviations of the reference's, and every standard
deviation within 10 %. CPU seconds are those of the process, on one thread. The peers have at least as many as TriangularAffine
took, and a quarter of that; compilation (which is stored beside), and choosing the number of steps, are not counted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from classical.models import MODELS, Arrays, Model

FOLDER = Path(__file__).parents[1] / "results" / "posteriors"
TIMES = (0.25, 1.0)
GENEROUS = 1.2
"""The peers have more CPU seconds than ours rather than fewer."""
DRAWS = 20_000
SEED = 0
FRESH = (101, 102, 103)
"""Seeds of fit, diagnosis and draws that were never looked at while defaults and thresholds were chosen."""
KINDS = ("float64", "float32")
STEPS = (100, 400, 2000)
"""Of ours; the last is the default, and a run may end before."""


def moments(model: Model, draws: Arrays) -> dict[str, list[float]]:
    """Means and standard deviations of all compared quantities, one after the other."""
    flat = np.concatenate([np.asarray(x, dtype=np.float64).reshape(len(x), -1) for x in model.judged(draws).values()], 1)
    return {"mean": flat.mean(0).tolist(), "sd": flat.std(0).tolist()}


def errors(found: dict[str, list[float]], true: dict[str, list[float]]) -> dict[str, float]:
    """The worst mean, in standard deviations, and the worst standard deviation, relative; infinite where not a number."""
    mean, sd, true_mean, true_sd = (np.array(x) for x in (found["mean"], found["sd"], true["mean"], true["sd"]))
    off = {"mean_error": np.abs(mean - true_mean) / true_sd, "sd_error": np.abs(sd / true_sd - 1)}
    return {name: float(np.nan_to_num(x, nan=math.inf).max()) for name, x in off.items()}


def right(row: dict[str, Any]) -> bool:
    """Every mean within 0.1 standard deviations, every standard deviation within 10 %."""
    return row["mean_error"] <= 0.1 and row["sd_error"] <= 0.1


def told(row: dict[str, Any]) -> list[str]:
    """What a user is told: a verdict other than converged, Pareto k above 0.7, figures that `diagnose` corrects."""
    verdict = [row["converged"].lower()] * (row["converged"] != "CONVERGED")
    return verdict + ["k"] * (not row["pareto_k"] <= 0.7) + ["misses"] * (row.get("misses", 0) > 0)


def judged(ours: dict[str, Any], best: dict[str, Any]) -> dict[str, list[str]]:
    """The claims, each with the rows that speak against it.

    A target is within a family's reach if its best member is right; where `fit` is right, that is shown already.
    """
    rows = {
        (model, method, kind): runs[-1]
        for model, methods in ours.items()
        for method, kinds in methods.items()
        for kind, runs in kinds.items()
    }
    against: dict[str, list[str]] = {}
    for method in dict.fromkeys(method for _, method, _ in rows):
        wrong = [m for (m, f, kind), row in rows.items() if f == method and kind == "float64" and not right(row)]
        unknown = [m for m in wrong if method not in best.get(m, {})]
        within = [m for m in wrong if m not in unknown and right(best[m][method])]
        against[f"{method}, float64: right on every posterior within its reach"] = within
        against[f"{method}: its reach is known where it is not right"] = unknown
        count = {k: sum(right(row) for (_, f, kind), row in rows.items() if (f, kind) == (method, k)) for k in KINDS}
        few = [f"{count['float32']} against {count['float64']}"] if count["float32"] < count["float64"] - 1 else []
        against[f"{method}, float32: right on as many less one"] = few
    words = {place: ", ".join(place) for place in rows}
    against["what is not right is told"] = [words[p] for p, row in rows.items() if not right(row) and not told(row)]
    against["weighted figures are right where their k is below 0.7"] = [
        words[p] for p, row in rows.items() if row["reliable"] and not right(row["weighted"])
    ]
    return against


def stored_runs() -> dict[str, dict[str, Any]]:
    """Ours as stored, and at each fresh seed, all in one form."""
    runs = {"stored": read("ours")["models"]}
    for name, methods in read("fresh").get("models", {}).items():
        for method, kinds in methods.items():
            for kind, by_seed in kinds.items():
                for seed, row in by_seed.items():
                    runs.setdefault(f"seed {seed}", {}).setdefault(name, {}).setdefault(method, {})[kind] = [row]
    return runs


def judge() -> None:
    """Prints the claims and whether they hold."""
    best = read("best")["models"]
    for title, models in stored_runs().items():
        print(title)
        for claim, against in judged(models, best).items():
            print(f"{'fails' if against else 'holds':6} {claim}{': ' + '; '.join(against) if against else ''}")
        rows = [runs[-1] for methods in models.values() for kinds in methods.values() for runs in kinds.values()]
        wrong = [row for row in rows if not right(row)]
        by_misses = sum(told(row) == ["misses"] for row in wrong)
        print(f"{len(rows)} results, {len(rows) - len(wrong)} right; {by_misses} others told by `diagnose` alone;", end=" ")
        print(f"weighted figures reliable in {sum(row['reliable'] for row in rows)}")
    short = [
        f"{peer} {name}: {rows[-1]['cpu_seconds']:g} of {budget:g} s"
        for peers in ("jax", "pyro")
        for name, methods in read(peers).get("models", {}).items()
        for budget in [read("ours")["models"][name]["TriangularAffine"]["float64"][-1]["cpu_seconds"]]
        for peer, rows in methods.items()
        if rows[-1].get("cpu_seconds", math.inf) < budget
    ]
    found = f"fails  {'; '.join(short)}" if short else "holds "
    print(f"{found} peers have the CPU seconds of TriangularAffine at least")


class Results:
    """One file of results/posteriors/, written after every figure."""

    def __init__(self, name: str, versions: dict[str, str], folder: Path = FOLDER) -> None:
        self.path = folder / f"{name}.json"
        self.content: dict[str, Any] = read(name, folder)
        self.content["command"] = f"python benchmarks/posteriors.py {name}"
        self.content["seed"] = SEED
        own = {"python": platform.python_version(), "numpy": np.__version__}
        self.content["versions"] = self.content.get("versions", {}) | own | versions
        self.models: dict[str, Any] = self.content.setdefault("models", {})

    def save(self) -> None:
        """Writes the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.content, indent=1) + "\n")


def read(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """A stored file, or nothing."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def with_reference(names: list[str]) -> list[str]:
    """Those that can be judged; says which cannot."""
    known = read("reference").get("models", {})
    for name in names:
        if name not in known:
            print(f"{name}: no reference. First: python benchmarks/posteriors.py reference --models {name!r}")
    return [name for name in names if name in known]


def reference(names: list[str], count: int) -> None:
    """Exact answers where `classical.exact` has them, or else long NUTS; the centred schools from the draws of the others."""
    from classical.exact import EXACT

    results = Results("reference", {})
    for name in names:
        if name in EXACT:
            began = time.process_time()
            results.models[name] = EXACT[name]() | {"seconds": round(time.process_time() - began, 1)}
            results.save()
            continue
        from classical import jax_peers

        results.content["versions"] |= jax_peers.versions()
        source = "eight schools" if name == "eight schools, centred" else name
        draws, facts = jax_peers.nuts(MODELS[source], count, SEED)
        if source != name:
            draws["theta"] = draws["mu"][:, None] + draws["tau"][:, None] * draws.pop("z")
        results.models[name] = {"source": "NUTS", **facts, **moments(MODELS[name], draws)}
        results.save()
        print(name, facts, flush=True)


def peers(kind: str, names: list[str], methods: list[str] | None) -> None:
    """The methods of `classical.jax_peers` or `classical.pyro_peers`, in the CPU seconds of ours."""
    if kind == "jax":
        from classical import jax_peers as module
    else:
        from classical import pyro_peers as module
    true, ours = read("reference")["models"], read("ours")["models"]
    results = Results(kind, module.versions())
    for name in with_reference(names):
        budget = ours[name]["TriangularAffine"]["float64"][-1]["cpu_seconds"]
        for method in methods or list(module.METHODS):
            rows = results.models.setdefault(name, {})[method] = []
            try:
                began = time.process_time()
                run = module.METHODS[method].prepare(MODELS[name])
                few = 2 if method == "Pathfinder" else 200
                once = run(few, SEED)[1]
                each, compilation = once / few, time.process_time() - began - once
            except Exception as error:  # a peer that fails is a result
                rows.append({"times": 0.0, "failed": f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"})
                continue
            for times in TIMES:
                steps = max(1, round(GENEROUS * times * budget / each))
                began = time.perf_counter()
                draws, seconds = run(steps, SEED)
                while seconds < times * budget:  # steps were slower when they were timed
                    steps = math.ceil(steps * max(GENEROUS, GENEROUS * times * budget / seconds))
                    began = time.perf_counter()
                    draws, seconds = run(steps, SEED)
                row = {"times": times, "steps": steps, "cpu_seconds": round(seconds, 3)}
                row |= {"wall_seconds": round(time.perf_counter() - began, 2), "once_cpu_seconds": round(compilation, 2)}
                row |= errors(moments(MODELS[name], draws), true[name])
                rows.append(row)
            results.save()
            print(f"{name:24} {method:40}", *(f"{row['mean_error']:.3g}/{row['sd_error']:.3g}" for row in rows), flush=True)


def ours(names: list[str], methods: list[str] | None) -> None:
    """Three families with the defaults; what the verdict and k say, and the figures by importance weights."""
    import torch
    from classical.families import FAMILIES, fitted

    import liebayes as lb

    torch.set_num_threads(1)
    true = read("reference")["models"]
    results = Results("ours", {"liebayes": lb.__version__, "torch": torch.__version__})
    for name in with_reference(names):
        for method in methods or list(FAMILIES):
            stored = results.models.setdefault(name, {})[method] = {}
            for kind, counts in {"float64": STEPS, "float32": STEPS[-1:]}.items():
                rows = stored[kind] = []
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", lb.FitWarning)
                    fitted(MODELS[name], FAMILIES[method], getattr(torch, kind), 10, SEED)  # imports, and what torch does once
                for steps in counts:
                    row: dict[str, Any] = {"steps": steps}
                    began, wall = time.process_time(), time.perf_counter()
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", lb.FitWarning)
                        found = fitted(MODELS[name], FAMILIES[method], getattr(torch, kind), steps, SEED)
                    row |= {"cpu_seconds": round(time.process_time() - began, 3)}
                    row |= {"wall_seconds": round(time.perf_counter() - wall, 2)}
                    row |= found.facts | errors(moments(MODELS[name], found.draws), true[name])
                    if steps == STEPS[-1]:
                        told, weighted = found.weighed()
                        row |= told | {"weighted": errors(weighted, true[name])}
                    rows.append(row)
                last = rows[-1]
                weighted = "{mean_error:.3f}/{sd_error:.3f}".format(**last["weighted"])
                print(
                    f"{name:24} {method:17} {kind} {last['taken']:5} steps {last['cpu_seconds']:6.2f} s  "
                    f"{last['mean_error']:.3f}/{last['sd_error']:.3f}  k {last['pareto_k']:.2f} weighted {weighted}  "
                    f"{last['verdict'][:70]}",
                    flush=True,
                )
                results.save()


def fresh(names: list[str], methods: list[str] | None, seeds: list[int]) -> None:
    """Ours again at other seeds: what the verdict, k and the weights say there."""
    import torch
    from classical.families import FAMILIES, fitted

    import liebayes as lb

    torch.set_num_threads(1)
    true = read("reference")["models"]
    results = Results("fresh", {"liebayes": lb.__version__, "torch": torch.__version__})
    for seed, name in itertools.product(seeds, with_reference(names)):
        for method, kind in itertools.product(methods or list(FAMILIES), KINDS):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", lb.FitWarning)
                found = fitted(MODELS[name], FAMILIES[method], getattr(torch, kind), STEPS[-1], seed)
            told, weighted = found.weighed(seed)
            row = found.facts | errors(moments(MODELS[name], found.draws), true[name]) | told
            row["weighted"] = errors(weighted, true[name])
            by_seed = results.models.setdefault(name, {}).setdefault(method, {}).setdefault(kind, {})
            by_seed[str(seed)] = row
            weighted = "{mean_error:.3f}/{sd_error:.3f}".format(**row["weighted"])
            print(
                f"{seed} {name:24} {method:17} {kind} {row['mean_error']:.3f}/{row['sd_error']:.3f} {row['converged']:9} "
                f"k {row['pareto_k']:.2f} misses {row['misses']} weighted k {row['weighted_k']:.2f} {weighted}",
                flush=True,
            )
            results.save()


def best(names: list[str], methods: list[str] | None) -> None:
    """How far each family can reach: its best member, searched from where a fit ended."""
    import torch
    from classical import best as module
    from classical.families import FAMILIES, fitted

    import liebayes as lb

    torch.set_num_threads(1)
    true = read("reference")["models"]
    results = Results("best", {"torch": torch.__version__})
    for name in with_reference(names):
        for method in methods or list(FAMILIES):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", lb.FitWarning)
                found = fitted(MODELS[name], FAMILIES[method], torch.float64, STEPS[-1], SEED + 7)
            draws, facts = module.best(found, method)
            row = facts | errors(moments(MODELS[name], draws), true[name])
            results.models.setdefault(name, {})[method] = row
            results.save()
            print(f"{name:24} {method:17} {row['mean_error']:.3f}/{row['sd_error']:.3f} {facts}", flush=True)


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("reference", "ours", "fresh", "best", "pyro", "jax", "picture", "judge"))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int, default=FRESH, help="of `fresh`")
    parser.add_argument("--draws", type=int, default=2500, help="of each of the eight chains of a reference")
    asked = parser.parse_args()
    if asked.what == "reference":
        reference(asked.models, asked.draws)
    elif asked.what == "ours":
        ours(asked.models, asked.methods)
    elif asked.what == "fresh":
        fresh(asked.models, asked.methods, asked.seeds)
    elif asked.what == "best":
        best(asked.models, asked.methods)
    elif asked.what == "judge":
        judge()
    elif asked.what == "picture":
        from classical.picture import draw

        draw(FOLDER, Path(__file__).parents[1] / "docs" / "posteriors.png")
    else:
        peers(asked.what, asked.models, asked.methods)


if __name__ == "__main__":
    main()
