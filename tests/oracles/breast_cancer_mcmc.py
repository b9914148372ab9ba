"""Reference posterior of Bayesian logistic regression on the breast cancer data, by long HMC.

The model is that of ``breast_cancer.py``.

Method: Hamiltonian Monte Carlo in the coordinates z, w = mode + L z, with L L' the Laplace covariance at the
mode (which is the same as HMC on w with the Laplace precision as mass matrix).  The chains advance together
as the rows of one array.  Step size and number of leapfrog steps are drawn afresh for every iteration, so
that no direction can resonate with the trajectory length.  The step size is tuned during warm-up only.

Output: ``breast_cancer_mcmc.json`` next to this file.  Nothing is written unless the run passes its own
checks, for each weight:

* split R-hat <= 1.01, for w and for its squared deviation (the latter sees chains that disagree in scale);
* Monte Carlo standard error of the mean < 0.01 sd, and of the sd < 1 %;
* Stein's identities E[d_j log p(w)] = 0 and E[(w_j - mean_j) d_j log p(w)] = -1, which hold exactly under
  the posterior, within 5 Monte Carlo standard errors: these catch a sampler that mixes well but to the
  wrong distribution.

Run from the root of the repository, less than a minute on one core, with about 1 GB of memory::

    python tests/oracles/breast_cancer_mcmc.py

Needs numpy, scipy and scikit-learn only; it imports nothing from the library that it serves to test.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
from breast_cancer import PRECISION, Array, load_data, store

CHAINS, WARMUP, DRAWS, SEED = 16, 1000, 40000, 20240607

MAX_RHAT = 1.01
MAX_MCSE_MEAN = 0.01  # in units of the posterior sd
MAX_MCSE_SD = 0.01  # relative
MAX_STEIN_Z = 5.0  # 62 statistics are tested: 5 standard errors by chance has probability of about 4e-5


def sigmoid(a: Array) -> Array:
    """Return the logistic function of a."""
    # tanh neither overflows nor branches, unlike 1 / (1 + exp(-a))
    return 0.5 * (1.0 + np.tanh(0.5 * a))


def log_posterior(w: Array, x: Array, y: Array) -> Array:
    """Unnormalised log posterior (chains,) at the weights w (chains, 31)."""
    logits = w @ x.T
    return logits @ y - np.logaddexp(0.0, logits).sum(axis=1) - 0.5 * PRECISION * (w**2).sum(axis=1)


def laplace(x: Array, y: Array) -> tuple[Array, Array]:
    """Mode of the posterior and Cholesky factor of the inverse negative Hessian there."""
    w = np.zeros(x.shape[1])
    for _ in range(100):
        p = sigmoid(x @ w)
        hessian = (x.T * (p * (1.0 - p))) @ x + PRECISION * np.eye(len(w))
        grad = (y - p) @ x - PRECISION * w
        if np.abs(grad).max() < 1e-10:
            return w, np.linalg.cholesky(np.linalg.inv(hessian))
        direction = np.linalg.solve(hessian, grad)
        # Halve the Newton step until it ascends: with nearly separable classes, the full step can overshoot.
        step, value = 1.0, log_posterior(w[None], x, y)[0]
        while log_posterior((w + step * direction)[None], x, y)[0] < value and step > 1e-6:
            step *= 0.5
        w = w + step * direction
    raise RuntimeError("Newton's method did not find the mode")


def hmc(x: Array, y: Array, chains: int, warmup: int, draws: int) -> tuple[Array, Array, Array, float]:
    """Sample; return weights and gradients (draws, chains, 31), acceptance per chain, tuned step size."""
    rng = np.random.default_rng(SEED)
    mode, scale = laplace(x, y)
    dim = len(mode)
    # In whitened coordinates logits = mode_logits + z @ x_white', and d/dz = (d/dw) @ scale.
    x_white = x @ scale
    mode_logits = x @ mode

    def potential_gradient(z: Array) -> Array:
        residual = y - sigmoid(z @ x_white.T + mode_logits)
        return PRECISION * ((mode + z @ scale.T) @ scale) - residual @ x_white

    def potential(z: Array) -> Array:
        return -log_posterior(mode + z @ scale.T, x, y)

    z = 3.0 * rng.standard_normal((chains, dim))  # starts three times as wide as the Laplace approximation
    energy, grad = potential(z), potential_gradient(z)
    log_step = np.log(0.3)
    kept_w, kept_grad = np.empty((draws, chains, dim)), np.empty((draws, chains, dim))
    acceptance = np.zeros(chains)
    inverse_scale = np.linalg.inv(scale)

    for iteration in range(warmup + draws):
        # The trajectory length is about a quarter of the period of a unit Gaussian, where the draws
        # decorrelate; it is randomised over [0.5, 1.5] pi / 2, and the step by 20 % besides.
        step = np.exp(log_step) * rng.uniform(0.8, 1.2)
        leaps = max(1, int(np.rint(rng.uniform(0.5, 1.5) * 0.5 * np.pi / np.exp(log_step))))
        momentum = rng.standard_normal((chains, dim))
        start = energy + 0.5 * (momentum**2).sum(axis=1)
        z_new, grad_new = z, grad
        momentum = momentum - 0.5 * step * grad_new
        for leap in range(leaps):
            z_new = z_new + step * momentum
            grad_new = potential_gradient(z_new)
            momentum = momentum - (step if leap < leaps - 1 else 0.5 * step) * grad_new
        energy_new = potential(z_new)
        log_ratio = start - energy_new - 0.5 * (momentum**2).sum(axis=1)
        # A trajectory that diverged gives nan: reject it.
        probability = np.exp(np.minimum(0.0, np.nan_to_num(log_ratio, nan=-np.inf)))
        accept = rng.random(chains) < probability
        z = np.where(accept[:, None], z_new, z)
        grad = np.where(accept[:, None], grad_new, grad)
        energy = np.where(accept, energy_new, energy)

        if iteration < warmup:
            # Robbins-Monro towards 90 % acceptance, frozen afterwards so that the kept chain is Markov.
            log_step += (probability.mean() - 0.9) * 2.0 / np.sqrt(iteration + 10.0)
        else:
            kept_w[iteration - warmup] = mode + z @ scale.T
            kept_grad[iteration - warmup] = -grad @ inverse_scale  # of the log posterior, in w
            acceptance += probability / draws
    return kept_w, kept_grad, acceptance, float(np.exp(log_step))


def split_rhat(draws: Array) -> float:
    """Split R-hat of draws (n, chains): every chain counts as two halves."""
    half = len(draws) // 2
    halves = np.hstack([draws[:half], draws[-half:]])
    within = halves.var(axis=0, ddof=1).mean()
    between_over_n = halves.mean(axis=0).var(ddof=1)
    return float(np.sqrt((half - 1) / half + between_over_n / within))


def effective_size(draws: Array) -> float:
    """Effective sample size of draws (n, chains), over split chains, by Geyer's initial monotone sequence.

    The estimator of Vehtari et al. (2021), "Rank-normalization, folding, and localization: an improved
    R-hat", without the rank-normalisation; the autocovariances are computed by FFT.
    """
    half = len(draws) // 2
    halves = np.hstack([draws[:half], draws[-half:]])
    centred = halves - halves.mean(axis=0)
    spectrum = np.fft.rfft(centred, n=2 * half, axis=0)  # zero-padded, so that lags do not wrap around
    autocov = np.fft.irfft(spectrum * spectrum.conj(), axis=0)[:half].mean(axis=1) / half
    within = autocov[0] * half / (half - 1)
    total = autocov[0] + halves.mean(axis=0).var(ddof=1)
    rho = 1.0 - (within - autocov) / total
    rho[0] = 1.0
    pairs = rho[: half - half % 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs < 0.0)
    pairs = np.minimum.accumulate(pairs[: negative[0]] if len(negative) else pairs)
    tau = max(-1.0 + 2.0 * float(pairs.sum()), 1.0 / np.log10(halves.size))  # bound for antithetic chains
    return halves.size / tau


def per_weight(statistic: Callable[[Array], float], draws: Array) -> Array:
    """Apply a statistic of (n, chains) to each of the weights of draws (n, chains, 31)."""
    return np.array([statistic(draws[:, :, j]) for j in range(draws.shape[2])])


def main() -> None:
    """Sample, check, store."""
    began = time.perf_counter()
    x, y = load_data()
    w, grad, acceptance, step = hmc(x, y, CHAINS, WARMUP, DRAWS)

    flat = w.reshape(-1, w.shape[2])
    mean, covariance = flat.mean(axis=0), np.cov(flat, rowvar=False)
    sd = np.sqrt(np.diag(covariance))
    square = (w - mean) ** 2
    rhat, rhat_square = per_weight(split_rhat, w), per_weight(split_rhat, square)
    ess, ess_square = per_weight(effective_size, w), per_weight(effective_size, square)
    mcse_mean = sd / np.sqrt(ess)
    # sd = sqrt(E square), hence by the delta method se(sd) = se(mean of square) / (2 sd).
    mcse_sd = square.std(axis=(0, 1)) / np.sqrt(ess_square) / (2.0 * sd)

    def z_scores(values: Array, expected: float) -> Array:
        error = values.std(axis=(0, 1)) / np.sqrt(per_weight(effective_size, values))
        return (values.mean(axis=(0, 1)) - expected) / error

    stein_first, stein_second = z_scores(grad, 0.0), z_scores((w - mean) * grad, -1.0)
    worst = {
        "rhat": max(rhat.max(), rhat_square.max()),
        "mcse_mean_over_sd": (mcse_mean / sd).max(),
        "mcse_sd_relative": (mcse_sd / sd).max(),
        "stein_z": max(np.abs(stein_first).max(), np.abs(stein_second).max()),
    }
    seconds = time.perf_counter() - began
    print(f"{flat.shape[0]} draws in {seconds:.0f} s, step {step:.3f}")
    print(f"acceptance {acceptance.mean():.3f}, least ESS {ess.min():.0f}, of squares {ess_square.min():.0f}")
    print(", ".join(f"{name} {value:.5f}" for name, value in worst.items()))
    limits = dict(zip(worst, (MAX_RHAT, MAX_MCSE_MEAN, MAX_MCSE_SD, MAX_STEIN_Z), strict=True))
    # "not <=" rather than ">" so that nan fails too
    failed = [name for name, limit in limits.items() if not worst[name] <= limit]
    if failed:
        sys.exit(f"not stored: {', '.join(failed)} beyond the limit")

    store(
        "breast_cancer_mcmc", seconds, mean=mean, sd=sd, covariance=covariance,
        mcse={"mean": mcse_mean.tolist(), "sd": mcse_sd.tolist()},
        ess={"mean": ess.tolist(), "square": ess_square.tolist()},
        rhat={"mean": rhat.tolist(), "square": rhat_square.tolist()},
        stein_z={"first": stein_first.tolist(), "second": stein_second.tolist()},
        worst={name: float(value) for name, value in worst.items()},
        acceptance=acceptance, step_size=step, seed=SEED, chains=CHAINS, warmup=WARMUP, draws_per_chain=DRAWS,
        draws=flat.shape[0],
    )  # fmt: skip


if __name__ == "__main__":
    main()
