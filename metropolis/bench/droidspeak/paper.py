"""The paper's pairs and figures, and plans made of them for simulations.

DroidSpeak, first version (Nov 2024): Table 2 (quality and speed-up), §7 and Fig. 16 (layers that
can be reused without loss of quality). Quality is in per cent there. Where the recomputed layers
lie is not printed: the plans assume one band in the middle, so that one E is moved. For MAmmoTH2
the number of layers is not printed either; the plan assumes the one that fits the speed-up.
"""

from __future__ import annotations

from dataclasses import dataclass

from metropolis.reuse.plan import Band, Plan, PlanPoint


@dataclass(frozen=True)
class PaperResult:
    """A row of Table 2."""

    dataset: str
    receiver_per_cent: float
    ours_per_cent: float
    speedup: float


@dataclass(frozen=True)
class PaperPair:
    """A pair of models, and the instance that serves each."""

    sender: str
    receiver: str
    layers: int
    reused_layers: int
    profile: str
    """Profile of a model with the same shape on the paper's A100s."""
    results: tuple[PaperResult, ...]

    @property
    def band(self) -> Band:
        """The recomputed layers, assumed to be in the middle."""
        first = self.reused_layers // 2
        return Band(first, first + self.layers - self.reused_layers - 1)

    @property
    def speedups(self) -> tuple[float, float]:
        """The smallest and the largest speed-up in Table 2."""
        found = [result.speedup for result in self.results]
        return min(found), max(found)

    def plan(self) -> Plan:
        """The pair's plan: its quality is Table 2's, its share that of the layers."""
        first = self.results[0]
        share = len(self.band) / self.layers
        point = PlanPoint((self.band,), first.ours_per_cent / 100, share)
        return Plan(
            sender=self.sender,
            receiver=self.receiver,
            layers=self.layers,
            metric=f"{first.dataset}, as in Table 2",
            data=first.dataset,
            prompt_tokens=8192,
            sender_quality=None,
            receiver_quality=first.receiver_per_cent / 100,
            points=(point,),
            source="DroidSpeak (2024), Table 2 and §7; share: that of the recomputed layers",
        )


PAIRS = (
    PaperPair(
        "Llama-3-8B", "Llama-3-8B-Instruct", 32, 13, "llama-3-8b/a100",
        (
            PaperResult("HotpotQA", 46.2, 44.9, 1.69),
            PaperResult("NarrativeQA", 22.6, 24.9, 1.69),
            PaperResult("MultifieldQA", 38.1, 36.9, 1.69),
        ),
    ),
    PaperPair(
        "Mistral-7B", "Mistrallite", 32, 15, "llama-3-8b/a100",
        (
            PaperResult("HotpotQA", 62.9, 60.8, 1.77),
            PaperResult("NarrativeQA", 31.6, 29.9, 1.78),
            PaperResult("Gov_report", 32.9, 31.0, 1.77),
        ),
    ),
    PaperPair(
        "Llama-3-70B", "Llama-3-70B-Instruct", 80, 40, "llama-3-70b/a100-tp4",
        (
            PaperResult("MultifieldQA", 49.8, 53.5, 1.73),
            PaperResult("HotpotQA", 61.2, 60.2, 1.72),
            PaperResult("Multi_news", 21.8, 21.9, 1.73),
        ),
    ),
    PaperPair(
        "Llama-3-8B", "MAmmoTH2", 32, 21, "llama-3-8b/a100",
        (PaperResult("Math", 34.6, 35.2, 2.77), PaperResult("GSM8K", 67.6, 67.2, 2.78)),
    ),
)  # fmt: skip


def pairs(quick: bool) -> tuple[PaperPair, ...]:
    """The pairs that a section simulates; `quick`: one of them."""
    return PAIRS[3:] if quick else PAIRS
