"""Exact Gaussian variational optima of Bayesian logistic regression on the breast cancer data.

The model is that of ``breast_cancer.py``.

Computed are the Gaussians q that minimise KL(q || posterior), that is, maximise the ELBO

    E_q[log p(y | w)] + E_q[log p(w)] + entropy(q),

once among all Gaussians ("full") and once among those with diagonal covariance ("diagonal").  There is no
sampling: the likelihood term needs only the one-dimensional Gaussian of every x_i . w under q, over which
the expectation is integrated numerically, so the ELBO is deterministic and L-BFGS maximises it.  In the mean
and the Cholesky factor the ELBO is strictly concave, so that the optimum is the only one.

The result is verified, independently of the optimiser and before anything is written, by the conditions that
characterise the optimum, with f_i = x_i . w under q:

    full:      X' (y - E[sigmoid(f)]) = precision m,   S^-1 = precision I + X' diag(E[sigmoid'(f)]) X
    diagonal:  the same for m,                         1 / s_j^2 = precision + sum_i x_ij^2 E[sigmoid'(f_i)]

Output: ``breast_cancer_gaussian_vi.json`` next to this file, with the deviations of both optima from MCMC.

Run from the root of the repository, after ``breast_cancer_mcmc.py``::

    python tests/oracles/breast_cancer_gaussian_vi.py

Needs numpy, scipy and scikit-learn only; it imports nothing from the library that it serves to test.
"""

import json
import sys
import time
from collections.abc import Callable

import numpy as np
from breast_cancer import HERE, PRECISION, Array, load_data, store
from scipy.optimize import minimize
from scipy.special import expit

MAX_RESIDUAL = 1e-5  # of the optimality conditions: errors in units of the posterior sd, and relative

# The trapezoidal rule on the standard normal, not Gauss-Hermite: softplus(mu + sigma t) has singularities at
# distance pi / sigma from the real line, so that the error is about exp(-2 pi^2 / (sigma h)), below 1e-13 for
# every sigma < 13 with h = 0.05, whereas Gauss-Hermite converges slowly as soon as sigma is several units.
NODES = np.arange(-9.0, 9.0 + 0.025, 0.05)
WEIGHTS = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()
MAX_SIGMA = 13.0


def expected_log_likelihood(mu: Array, sigma: Array, y: Array) -> tuple[float, Array, Array]:
    """Sum of E[log p(y_i | f_i)], f_i ~ N(mu_i, sigma_i^2), and its gradients in mu and in sigma.

    The gradients are those of the quadrature sum itself, so that value and gradient agree to rounding.
    """
    logits = mu[:, None] + sigma[:, None] * NODES
    value = float(y @ mu - (np.logaddexp(0.0, logits) @ WEIGHTS).sum())
    p = expit(logits)
    return value, y - p @ WEIGHTS, -(p @ (WEIGHTS * NODES))


def mode_and_laplace(x: Array, y: Array) -> tuple[Array, Array]:
    """Mode of the posterior and Cholesky factor of the Laplace covariance: where the optimisation starts."""

    def negative(w: Array) -> tuple[float, Array]:
        logits = x @ w
        value = np.logaddexp(0.0, logits).sum() - y @ logits + 0.5 * PRECISION * w @ w
        return value, (expit(logits) - y) @ x + PRECISION * w

    mode = minimize(negative, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 5000}).x
    p = expit(x @ mode)
    return mode, np.linalg.cholesky(np.linalg.inv((x.T * (p * (1 - p))) @ x + PRECISION * np.eye(len(mode))))


def maximise(elbo: Callable[[Array], tuple[float, Array]], start: Array) -> Array:
    """Maximise by L-BFGS, restarted until a restart gains nothing: that resets a stale curvature estimate."""

    def negative(parameters: Array) -> tuple[float, Array]:
        value, grad = elbo(parameters)
        return -value, -grad

    options = {"maxiter": 10000, "maxfun": 20000, "ftol": 0.0, "gtol": 1e-10, "maxcor": 50}
    best, parameters = -np.inf, start
    while True:
        found = minimize(negative, parameters, jac=True, method="L-BFGS-B", options=options)
        parameters = found.x
        if -found.fun - best < 1e-11:
            return parameters
        best = -found.fun


def fit_full(x: Array, y: Array) -> tuple[Array, Array, float]:
    """Mean, covariance and ELBO of the optimal full-rank Gaussian."""
    mode, scale = mode_and_laplace(x, y)
    dim = len(mode)
    rows, columns = np.tril_indices(dim, -1)

    def unpack(parameters: Array) -> tuple[Array, Array]:
        # Relative to the Laplace approximation, for conditioning: m = mode + scale a and chol = scale B,
        # with B lower triangular and the logarithm of its diagonal as parameter.
        factor = np.diag(np.exp(parameters[dim : 2 * dim]))
        factor[rows, columns] = parameters[2 * dim :]
        return mode + scale @ parameters[:dim], scale @ factor

    def elbo(parameters: Array) -> tuple[float, Array]:
        mean, chol = unpack(parameters)
        projected = x @ chol
        sigma = np.sqrt((projected**2).sum(axis=1))
        likelihood, d_mu, d_sigma = expected_log_likelihood(x @ mean, sigma, y)
        value = likelihood - 0.5 * PRECISION * (mean @ mean + (chol**2).sum()) + np.log(np.diag(chol)).sum()
        value += 0.5 * dim * (np.log(PRECISION) + 1.0)  # constants of log p(w) and of the entropy
        d_mean = x.T @ d_mu - PRECISION * mean
        # d sigma_i / d chol = x_i (x_i' chol) / sigma_i
        d_factor = scale.T @ (x.T @ ((d_sigma / sigma)[:, None] * projected) - PRECISION * chol)
        diagonal = np.exp(parameters[dim : 2 * dim])
        d_log_diagonal = np.diag(d_factor) * diagonal + 1.0  # + 1 from the log determinant
        return value, np.concatenate([scale.T @ d_mean, d_log_diagonal, d_factor[rows, columns]])

    optimum = maximise(elbo, np.zeros(2 * dim + len(rows)))
    mean, chol = unpack(optimum)
    return mean, chol @ chol.T, elbo(optimum)[0]


def fit_diagonal(x: Array, y: Array) -> tuple[Array, Array, float]:
    """Mean, standard deviations and ELBO of the optimal Gaussian with diagonal covariance."""
    mode, scale = mode_and_laplace(x, y)
    dim = len(mode)
    # The optimal sds are near those of the Laplace conditionals.
    start_sd = 1.0 / np.sqrt(np.diag(np.linalg.inv(scale @ scale.T)))

    def unpack(parameters: Array) -> tuple[Array, Array]:
        return mode + scale @ parameters[:dim], start_sd * np.exp(parameters[dim:])

    def elbo(parameters: Array) -> tuple[float, Array]:
        mean, sd = unpack(parameters)
        sigma = np.sqrt(x**2 @ sd**2)
        likelihood, d_mu, d_sigma = expected_log_likelihood(x @ mean, sigma, y)
        value = likelihood - 0.5 * PRECISION * (mean @ mean + sd @ sd) + np.log(sd).sum()
        value += 0.5 * dim * (np.log(PRECISION) + 1.0)
        d_mean = x.T @ d_mu - PRECISION * mean
        # d sigma_i / d log sd_j = x_ij^2 sd_j^2 / sigma_i
        d_log_sd = ((d_sigma / sigma) @ x**2 - PRECISION) * sd**2 + 1.0
        return value, np.concatenate([scale.T @ d_mean, d_log_sd])

    optimum = maximise(elbo, np.zeros(2 * dim))
    mean, sd = unpack(optimum)
    return mean, sd, elbo(optimum)[0]


def residual(mean: Array, covariance: Array, x: Array, y: Array, diagonal: bool) -> float:
    """Largest violation of the optimality conditions in the module's docstring, free of units.

    E[sigmoid'(f)] is integrated directly here: the optimiser saw only sigmoid, so the derivation is tested.
    """
    sigma = np.sqrt(np.einsum("ij,jk,ik->i", x, covariance, x))
    # Checked at the optimum only: on the way there, the optimiser may stray where the quadrature is coarse.
    if sigma.max() > MAX_SIGMA:
        raise RuntimeError(f"the sd of a logit is {sigma.max():.1f}: refine NODES")
    p = expit((x @ mean)[:, None] + sigma[:, None] * NODES)
    curvature = (p * (1.0 - p)) @ WEIGHTS
    grad = x.T @ (y - p @ WEIGHTS) - PRECISION * mean
    hessian = (x.T * curvature) @ x + PRECISION * np.eye(len(mean))
    # The Newton step that remains, in posterior sds; the remaining change of (co)variance, relative.
    inverse = np.linalg.inv(hessian)
    in_mean = np.abs(inverse @ grad) / np.sqrt(np.diag(inverse))
    if diagonal:
        in_covariance = np.abs(np.diag(hessian) * np.diag(covariance) - 1.0)
    else:
        chol = np.linalg.cholesky(covariance)
        in_covariance = np.abs(chol.T @ hessian @ chol - np.eye(len(mean)))
    return float(max(in_mean.max(), in_covariance.max()))


def deviation(mean: Array, sd: Array, mcmc: dict) -> dict[str, float]:
    """Largest deviations from MCMC over the weights."""
    reference_mean, reference_sd = np.array(mcmc["mean"]), np.array(mcmc["sd"])
    return {
        "max_mean_difference_over_sd": float((np.abs(mean - reference_mean) / reference_sd).max()),
        "max_relative_sd_difference": float(np.abs(sd / reference_sd - 1.0).max()),
    }


def main() -> None:
    """Optimise, verify, compare, store."""
    began = time.perf_counter()
    x, y = load_data()
    mean, covariance, elbo = fit_full(x, y)
    diagonal_mean, diagonal_sd, diagonal_elbo = fit_diagonal(x, y)
    optima = {
        "full": {"mean": mean, "sd": np.sqrt(np.diag(covariance)), "covariance": covariance, "elbo": elbo},
        "diagonal": {"mean": diagonal_mean, "sd": diagonal_sd, "elbo": diagonal_elbo},
    }
    mcmc, deviations = json.loads((HERE / "breast_cancer_mcmc.json").read_text()), {}
    for family, optimum in optima.items():
        S = np.diag(diagonal_sd**2) if family == "diagonal" else covariance
        optimum["residual"] = residual(optimum["mean"], S, x, y, diagonal=family == "diagonal")
        deviations[family] = deviation(optimum["mean"], optimum["sd"], mcmc)
        print(f"{family}: ELBO {optimum['elbo']:.6f}, residual of the optimality conditions {optimum['residual']:.1e}")
        print(f"{family} from MCMC: " + ", ".join(f"{name} {value:.4f}" for name, value in deviations[family].items()))
    if not max(optimum["residual"] for optimum in optima.values()) <= MAX_RESIDUAL:
        sys.exit("not stored: the optimality conditions are not met")
    plain = {f: {k: np.asarray(v).tolist() for k, v in optimum.items()} for f, optimum in optima.items()}
    seconds = time.perf_counter() - began
    store("breast_cancer_gaussian_vi", seconds, gaussian_vi=plain, deviation_from_mcmc=deviations)


if __name__ == "__main__":
    main()
