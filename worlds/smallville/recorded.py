"""What was recorded of the original, for comparison; nothing in a run depends on it."""

from __future__ import annotations

from collections.abc import Mapping

TOKENS: Mapping[str, tuple[int, int]] = {
    "event_poignancy": (305, 7),
    "chat_poignancy": (330, 7),
    "wake_up_hour": (205, 2),
    "daily_plan": (265, 150),
    "revise_identity": (900, 120),
    "hourly_schedule": (1130, 10),
    "task_decomp": (830, 220),
    "action_sector": (512, 8),
    "action_arena": (265, 6),
    "action_game_object": (245, 4),
    "pronunciatio": (91, 8),
    "event_triple": (172, 6),
    "act_obj_desc": (144, 9),
    "act_obj_event_triple": (171, 6),
    "decide_to_talk": (500, 15),
    "decide_to_react": (800, 15),
    "summarize_relationship": (900, 70),
    "iterative_convo": (1200, 60),
    "summarize_conversation": (520, 20),
    "new_decomp_schedule": (700, 250),
    "focal_pt": (600, 45),
    "insight_and_guidance": (620, 120),
    "planning_thought_on_convo": (520, 42),
    "memo_on_convo": (540, 42),
}
"""Function -> prompt and output tokens of a call of the published code of Park et al. (2023).

Observed in logs of public forks: `event_poignancy`, `task_decomp`, `action_*`, `pronunciatio`,
`event_triple`, `act_obj_*`; the others are estimates from its templates and recorded memories.
"""
