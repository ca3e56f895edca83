"""Activations, softmax, linear, norms and rope of the reference, against closed forms and plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from atbfn.reference.activation import FUNCTIONS, activation
from atbfn.reference.linear import linear
from atbfn.reference.norm import layernorm, layernorm_residual, rmsnorm, rmsnorm_residual
from atbfn.reference.rope import frequencies, llama3_frequencies, rope, tables
from atbfn.reference.softmax import softmax

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations_at_known_points(name: str) -> None:
    # Phi(1) and the logistic function at 1, to 16 digits.
    phi, logistic = 0.8413447460685429, 0.7310585786300049
    inner = math.sqrt(2 / math.pi) * 1.044715
    at_one = {"silu": logistic, "gelu": phi, "gelu_tanh": 0.5 * (1 + math.tanh(inner)), "relu": 1, "identity": 1}
    at_minus_one = {"silu": logistic - 1, "gelu": phi - 1, "gelu_tanh": at_one["gelu_tanh"] - 1, "relu": 0}
    out = activation(np.array([0.0, 1.0, -1.0]), name)["out"]
    np.testing.assert_allclose(out, [0, at_one[name], at_minus_one.get(name, -1)], rtol=1e-15)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations_far_out(name: str) -> None:
    out = activation(np.array([1e300, -1e30, np.inf, np.nan]), name)["out"]
    np.testing.assert_array_equal(out[[0, 2, 3]], [1e300, np.inf, np.nan])
    assert out[1] == (-1e30 if name == "identity" else 0)


def test_gelu_keeps_its_tail() -> None:
    # x Phi(x) for x -> -inf is -phi(x) (1 - 1/x^2 + 3/x^4 - 15/x^6 ...)
    x = -30.0
    density = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    expected = -density * (1 - x**-2 + 3 * x**-4 - 15 * x**-6)
    np.testing.assert_allclose(activation(np.array([x]), "gelu")["out"], [expected], rtol=1e-9)


def test_activation_takes_a_function() -> None:
    np.testing.assert_array_equal(activation(np.array([2.0, 3.0]), np.square)["out"], [4, 9])


def test_softmax() -> None:
    np.testing.assert_allclose(softmax([[0, math.log(3)], [1e300, 1e300]])["out"], [[0.25, 0.75], [0.5, 0.5]])
    out = softmax([[0, np.inf], [0, -np.inf], [-np.inf, -np.inf], [0, np.nan]])["out"]
    np.testing.assert_array_equal(out, [[np.nan] * 2, [1, 0], [np.nan] * 2, [np.nan] * 2])
    assert softmax(np.zeros((2, 0)))["out"].shape == (2, 0)


def test_linear() -> None:
    x, w, b = RNG.standard_normal((2, 3, 5)), RNG.standard_normal((4, 5)), RNG.standard_normal(4)
    out = linear(x, w, b)["out"]
    for i, j, o in np.ndindex(out.shape):
        assert math.isclose(out[i, j, o], math.fsum([*(x[i, j] * w[o]), b[o]]), rel_tol=1e-12)


def test_norms() -> None:
    x, residual = RNG.standard_normal((3, 7)), RNG.standard_normal((3, 7))
    gamma, beta = RNG.standard_normal(7), RNG.standard_normal(7)
    for steps in (layernorm(x + residual, gamma, beta, eps=0.1), layernorm_residual(x, residual, gamma, beta, eps=0.1)):
        for i in range(3):
            row = list(x[i] + residual[i])
            mean = math.fsum(row) / 7
            deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in row) / 7 + 0.1)
            expected = [(v - mean) / deviation * g + c for v, g, c in zip(row, gamma, beta, strict=True)]
            np.testing.assert_allclose(steps["normed"][i], expected)
            np.testing.assert_allclose([steps["mean"][i], steps["rstd"][i]], [mean, 1 / deviation])
    for steps in (rmsnorm(x + residual, gamma, eps=0.1), rmsnorm_residual(x, residual, gamma, eps=0.1)):
        for i in range(3):
            row = list(x[i] + residual[i])
            root = math.sqrt(math.fsum(v * v for v in row) / 7 + 0.1)
            np.testing.assert_allclose(steps["normed"][i], [v / root * g for v, g in zip(row, gamma, strict=True)])
    np.testing.assert_array_equal(layernorm_residual(x, residual, gamma, eps=0.1)["summed"], x + residual)
    np.testing.assert_array_equal(layernorm([3.0], [2.0], [5.0], eps=1e-5)["normed"], [5.0])
    assert list(layernorm_residual(x, residual, gamma, eps=0.1)) == ["summed", "mean", "rstd", "normed"]


def test_norms_leave_nonfinite_rows_to_themselves() -> None:
    x = np.array([[1.0, 2.0], [np.inf, 1.0], [np.nan, 1.0]])
    normed = rmsnorm(x, np.ones(2), eps=1e-6)["normed"]
    assert np.isfinite(normed[0]).all() and np.isnan(normed[2]).all()
    np.testing.assert_array_equal(normed[1], [np.nan, 0])
    assert np.isnan(layernorm(x, np.ones(2), eps=1e-6)["normed"][1:]).all()


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_rope_turns_pairs_as_complex_numbers(style: str) -> None:
    x = RNG.standard_normal((2, 3, 4, 10))
    freqs = frequencies(8)
    cos, sin = tables(freqs, 9)
    out = rope(x, np.array([0, 5]), cos, sin, style=style)["out"]
    np.testing.assert_array_equal(out[..., 8:], x[..., 8:])
    for b, h, i, j in np.ndindex(2, 3, 4, 4):
        first, second = (j, j + 4) if style == "half" else (2 * j, 2 * j + 1)
        angle = ([0, 5][b] + i) * 10000 ** (-2 * j / 8)
        turned = complex(x[b, h, i, first], x[b, h, i, second]) * complex(math.cos(angle), math.sin(angle))
        np.testing.assert_allclose([out[b, h, i, first], out[b, h, i, second]], [turned.real, turned.imag])


def test_rope_outside_the_tables() -> None:
    out = rope(np.ones((1, 1, 3, 2)), -1, *tables(frequencies(2), 2))["out"]
    np.testing.assert_array_equal(np.isnan(out[0, 0]), [[True] * 2, [False] * 2, [False] * 2])
    with pytest.raises(ValueError, match="style: got 'other'"):
        rope(np.ones((1, 1, 1, 2)), 0, *tables(frequencies(2), 2), style="other")


def test_llama3_frequencies_as_published_for_8b() -> None:
    scaled = llama3_frequencies(frequencies(128, 500000.0), 8.0, 1.0, 4.0, 8192)
    plain = frequencies(128, 500000.0)
    np.testing.assert_array_equal(scaled[:28], plain[:28])  # wavelengths below 2048 tokens
    np.testing.assert_allclose(scaled[36:], plain[36:] / 8)  # above 8192
    between = scaled[29:35] / plain[29:35]
    assert ((between > 1 / 8) & (between < 1)).all() and (np.diff(between) < 0).all()
