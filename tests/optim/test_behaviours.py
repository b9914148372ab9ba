"""Every behaviour on every optimizer of ours; and the peers, so that no check is too strict to pass or too weak to fail."""

import warnings

import pytest
import torch
from support.behaviours import REGISTRY, Behaviour, train_compiled, verdict
from support.behaviours.adapters import BASELINES, IVON, OURS, SGD, Adapter

COMPILED = ("AffineBLR", "MultiplicativeBLR", "IVON", "VOGN")


@pytest.mark.parametrize("case", REGISTRY, ids=str)
@pytest.mark.parametrize("adapter", [*OURS, *BASELINES], ids=str)
def test_ours_have_every_behaviour(adapter: Adapter, case: Behaviour) -> None:
    if case.slow and adapter.name not in COMPILED:
        pytest.skip("compiled for some of them only; benchmarks/behaviours.py does all")
    answer, reason = verdict(case, adapter)
    assert answer == "yes" or (answer == "–" and not adapter.positive), reason


def test_the_checks_can_be_passed_without_us() -> None:
    """SGD passes all that apply to it, but for what it does not promise."""
    failed = {case.name for case in REGISTRY if verdict(case, SGD)[0] == "no"}
    assert failed == {"bfloat16 parameters", "non-finite gradients"}


def test_the_checks_can_fail() -> None:
    """IVON has what issue reports say about it."""
    pytest.importorskip("ivon")
    answers = {case.name: verdict(case, IVON)[0] for case in REGISTRY if not case.slow}
    for name in ("exception in the block", "clipping after the block", "parameter without gradient", "resuming",
                 "add_param_group in mid-training", "backward after the block", "a step GradScaler skips"):  # fmt: skip
        assert answers[name] == "no", name
    assert answers["micro-batches"] == "yes"
    assert answers["fresh samples"] == "yes"


def test_inductor() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        try:
            torch.compile(torch.sin)(torch.ones(2))
        except Exception as problem:
            pytest.skip(f"no compiler here: {type(problem).__name__}")
        train_compiled(next(a for a in OURS if a.name == "AffineBLR"), "inductor")
