"""Figures of Kairos (§7): reductions of latency by Kairos in per cent, and accuracy."""

from __future__ import annotations

from metropolis.trace.generate.agentic import APPLICATIONS, CO_LOCATED

Bands = dict[str, dict[str, tuple[float, float]]]
"""Other system -> which latency -> least and most reduction."""

_ALONE: Bands = {
    "Parrot": {"average": (17.8, 28.4), "P90": (19.1, 28.6)},
    "Ayo": {"average": (5.8, 10.8), "P90": (13.4, 20.2)},
}
PAPER: dict[str, dict[str, Bands]] = {
    "llama-3-8b": {
        **dict.fromkeys(APPLICATIONS, _ALONE),
        CO_LOCATED: {
            "Parrot": {
                "average": (45.1, 72.8), "P90": (45.4, 72.9), "P95": (56.8, 78.3),
                "P99": (69.6, 81.9),
            },
            "Ayo": {
                "average": (6.1, 37.9), "P90": (5.6, 35.7), "P95": (8.4, 40.6), "P99": (6.6, 57.2),
            },
            "no priority": {"average": (38.8, 69.6)},
            "no packing": {"average": (9.5, 10.6)},
        },
    },
    "llama-2-13b": {
        CO_LOCATED: {
            "Parrot": {
                "average": (42.1, 57.4), "P90": (43.1, 56.6), "P95": (48.1, 57.1),
                "P99": (56.8, 70.6),
            },
            "Ayo": {
                "average": (21.8, 24.6), "P90": (23.2, 25.9), "P95": (18.4, 21.4),
                "P99": (22.6, 37.9),
            },
        },
    },
}  # fmt: skip
"""Model -> application -> bands (§7.2, §7.3, §7.6; the larger model: §7.5).

Those of a single application span nine workloads. §7.2 names no rates, so we read them as one
figure for each workload, to be compared with a mean over loads. The others, of one workload, are
ranges over loads.
"""

ACCURACY = {"Kairos": 83.5, "Ayo": 75.9, "Parrot": 50.0}
"""Per cent of pairs in the right order (§7.4)."""
SCENARIOS = {**dict.fromkeys(APPLICATIONS, 3), CO_LOCATED: 1}
"""Weights in that mean: three data sets of each application, and the co-located workload."""


def bands_of(profile: str) -> dict[str, Bands]:
    """Return the bands of the profile's model; those of the 8B for models not in the paper."""
    return PAPER.get(profile.partition("/")[0], PAPER["llama-3-8b"])
