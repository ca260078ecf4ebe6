"""The systems of Agentix' evaluation (§6.2): engine, policy and dispatcher of each.

The engine is vLLM 0.6.1. As vLLM and vLLM-opt differ there, so do the simulated ones: vLLM has
neither chunked prefill nor a prefix cache, and the CPU prepares each of its iterations; vLLM-opt
has both, and the CPU prepares STEPS iterations at a time. MLFQ and Agentix are built on vLLM-opt.
Agentix alone fills the places of requests that complete between two decisions (§4.2.2). When vLLM
0.6.1 preempts by swap, it copies all blocks of a request out and back, with a prefix cache as well;
Agentix replaces only the kernel that copies them (§5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from metropolis._core import Profile
from metropolis.sim.engine_rules import ENGINE_RULES
from metropolis.sim.options import PoolOptions
from metropolis.sim.profiles import ProfileEntry, load_entry

SAMPLING_MS = (0.80, 0.0081)
"""Time of an iteration beside the model's: base, and for each sequence. Linear fits to the medians
that vidur published (MIT) for vLLM, Llama-2-7B, A100, batches of 8 to 64; errors up to 0.07 ms.
Profiles have the model's operators alone."""
DECISION_MS = (0.24, 0.0294)
"""Time of a decision: base, and for each sequence. It schedules and prepares the input. Processing
outputs (another 0.16 and 0.062 ms) does not count: since 0.6.0, vLLM does it while the next
iteration runs."""
STEPS = 8
"""Iterations between decisions with multi-step scheduling, as in vLLM's own benchmarks of it; the
paper does not say."""
SLOW_COPIES = 5.0
"""Duration of vLLM's copies as a multiple of Agentix's: block by block they take 3 to 7 times as
long (§6.5)."""
HOST_GB = 150.0
"""Host memory for swapping. The paper has more than 1.2 TB (§6.5) on a host with eight GPUs, and
does not say how much of it one engine has; with 1.2 TB nothing changes."""


@dataclass(frozen=True)
class System:
    """A system under comparison."""

    name: str
    policy: str
    """Empty: `plas` for single-threaded programs, `atlas` for others."""
    pool: PoolOptions
    swaps: bool = False
    """Whether preempted requests keep their KV on the host, copied as the bench says."""
    dispatcher: str = "least_used"
    options: str = ""
    """Options of the policy."""
    copies_slower: float = 1.0
    """Duration of copies as a multiple of the profile's."""
    engine: str = "vllm"
    """Name of its rules in ENGINE_RULES, as far as they belong to the profile."""

    def instance(self, profile: str, sequences: int) -> ProfileEntry:
        """Return an instance that decodes at most `sequences` at once."""
        entry = load_entry(profile)
        own = ENGINE_RULES[self.engine].profile(entry.profile)
        own.max_sequences, own.host_gb = sequences, HOST_GB
        own.pcie_gb_per_s /= self.copies_slower
        _add_cpu(own)
        return replace(entry, profile=own)


def _add_cpu(profile: Profile) -> None:
    """Add the CPU time of iterations and of decisions."""
    profile.w_ms += SAMPLING_MS[0]
    profile.h_ms += SAMPLING_MS[0]
    profile.b_ms += SAMPLING_MS[1]
    profile.d_ms, profile.e_ms = DECISION_MS


VLLM = System("vLLM", "fcfs", ENGINE_RULES["vllm-v0"].options(), engine="vllm-v0")
VLLM_OPT = System("vLLM-opt", "fcfs", PoolOptions(prefix_reuse=True, decision_iterations=STEPS))
MLFQ = System("MLFQ", "mlfq", VLLM_OPT.pool, swaps=True, copies_slower=SLOW_COPIES)
AGENTIX = System(
    "Agentix", "", replace(VLLM_OPT.pool, surplus=True), swaps=True, dispatcher="agentix"
)
FINE = ":quanta_s=0.2/0.4/0.8/1.6/3.2/6.4/12.8/25.6/51.2"
"""Quanta that double from 0.2 s, beside the default ones: the paper gives no numbers."""
FINE_MLFQ = replace(MLFQ, name="MLFQ, fine quanta", options=FINE)
FINE_AGENTIX = replace(AGENTIX, name="Agentix, fine quanta", options=FINE)
BY_PROGRAM = replace(AGENTIX, name="Agentix by program", options=":by_program=true")
SYSTEMS = (VLLM, VLLM_OPT, MLFQ, FINE_MLFQ, AGENTIX, FINE_AGENTIX, BY_PROGRAM)
OURS = (AGENTIX, FINE_AGENTIX, BY_PROGRAM)
