"""Fit an instance's profile to the recorded iterations of a real engine.

Run it from anywhere: python examples/fit_profile.py [ITERATIONS.csv.gz]; it needs scipy. A row is
an iteration: `load` (a number; loads were apart from one another), `duration_ms`, `prefills`,
`prompt_tokens` computed, sequences that decoded (`decodes`) and their `kv_tokens`. Without an
argument it reads what vLLM 0.24 did on an H100, in `traces/`; the lines printed are those of
`llama-3-8b/h100`. The requests of a load should have equal prompts, all sent at once.

An engine that schedules ahead prepares an iteration while the one before runs. So the first of a
load, on an idle engine, takes longer: that is a constant of its own, which no profile has. And the
engine reads a result late while it prepares a prefill, so durations are summed over each prefill
and its neighbours. Errors are relative and weigh by the square root of the time; outliers, such as
the first use of a kernel, weigh less.
"""

import argparse
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

default = Path(__file__).parent.parent / "traces" / "h100-vllm-iterations.csv.gz"
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("path", type=Path, nargs="?", default=default)
path = parser.parse_args().path
load, took_ms, prefills, prompt, decodes, kv = np.loadtxt(path, delimiter=",", skiprows=1).T

prefilling = prefills > 0
from_idle = np.concatenate([[True], load[1:] != load[:-1]])
near = prefilling.copy()
near[:-1] |= prefilling[1:]
near[1:] |= prefilling[:-1]
joined = near[1:] & near[:-1] & (load[1:] == load[:-1])
starts = np.flatnonzero(np.concatenate([[True], ~joined]))
# Tokens of a chunk times the KV before each, as in `llama-3-8b.toml`: prompts are equally long.
attended = prompt**2 / 2 / np.maximum(prefills, 1)


def model(parameters):
    """Milliseconds of each iteration, with `c_once`."""
    w, g, h, b, k, q, c, idle = parameters
    compute = np.maximum(w, g * (prompt + decodes) + h)
    return compute + b * decodes + k * kv + q * attended + c * prefilling + idle * from_idle


def in_windows(values):
    """Sum values over each window."""
    return np.add.reduceat(values, starts)


real = in_windows(took_ms)
fitted = least_squares(
    lambda parameters: (in_windows(model(parameters)) / real - 1) * np.sqrt(real / 1000),
    x0=[5, 0.02, 2, 0.01, 3e-5, 1e-6, 0.5, 1],
    x_scale=[1, 0.01, 1, 0.01, 1e-5, 1e-6, 1, 1],
    bounds=([0] * 8, [np.inf] * 8),
    loss="soft_l1",
    f_scale=0.05,
)
*costs, idle_ms = fitted.x
for name, cost in zip("wghbkqc", costs, strict=True):
    print(f"{name}_ms = {cost:.3g}")
print("c_once = true")
print(f"# an iteration on an idle engine: {idle_ms:.1f} ms more")
ours = in_windows(model(fitted.x))
for kind, chosen in (("decodes alone", ~near[starts]), ("prefills", near[starts])):
    total = ours[chosen].sum() / real[chosen].sum() - 1
    error = abs(ours[chosen] / real[chosen] - 1)
    print(
        f"# {kind}: {chosen.sum()} windows, {real[chosen].sum() / 1000:.1f} s, error of the sum "
        f"{total:+.1%}, median of absolute errors {np.median(error):.1%}"
    )
