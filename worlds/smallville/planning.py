"""A resident's plans: the day, its hours and tasks, and the place of a task."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from metropolis.llm.agent import LLM
from metropolis.worlds.smallville import prompts
from metropolis.worlds.smallville.geography import Tile
from metropolis.worlds.smallville.memory import Node
from metropolis.worlds.smallville.state import DAY_S, HOUR_S, MINUTE_S, Activity, Day, Task, day_of
from metropolis.worlds.smallville.targets import target
from metropolis.worlds.smallville.world import SLEEPING, Doing, Observation

if TYPE_CHECKING:
    from metropolis.worlds.smallville.resident import Resident

WAKE_HOUR_DEFAULT = 7
TASK_MINUTES_DEFAULT = 30
"""Duration of a task for which the model gives none."""
PLAN_IMPORTANCE = 5
TO_BED = "going to bed"
"""The activity of a resident who sleeps on arrival."""
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.):])\s*")
_SLEEP = re.compile(
    "(?:is )?(?:asleep|sleep)|schlaf|dormi(?!t)|durmi|睡觉|睡覺|睡眠|就寝|就寢|寝る|수면|취침"
)
_MINUTES = re.compile(r"[(\[,:]?\s*(\d+)\s*min[a-z.]*\s*[)\]]?\s*$", re.IGNORECASE)


async def begin_day(me: Resident, now_s: int, llm: LLM) -> None:
    """Plan the day of `now_s`; on later days, first review the previous day.

    As in the published code of Park et al. (2023), the plan is also remembered.
    """
    number, is_first = day_of(now_s), me.day.number < 0
    me.day = Day(number)
    wake_s = await _wake_up(me, now_s, llm)
    if not is_first:
        await _look_back(me, now_s, llm)
    prompt, function = prompts.daily_plan(me, wake_s, now_s), "daily_plan"
    if not is_first:
        function = "revise_identity"
    answer = await llm.chat(prompt, function=function, max_tokens=500)
    me.day.outline = lines_of(answer.text)
    hours = [Task("sleeping", number * DAY_S, number * DAY_S + wake_s)]
    for hour in range(wake_s // HOUR_S, 24):
        prompt = prompts.hourly_schedule(me, hours, hour, now_s)
        answer = await llm.chat(prompt, function="hourly_schedule", max_tokens=50)
        start_s = hours[-1].end_s
        what = first_line(answer.text) or "resting"
        if _same(what, hours[-1].what):
            hours[-1] = replace(hours[-1], end_s=number * DAY_S + (hour + 1) * HOUR_S)
        else:
            hours.append(Task(what, start_s, number * DAY_S + (hour + 1) * HOUR_S))
    me.day.hours = hours
    text = prompts.plan_as_thought(me, now_s)
    me.memory.add(Node("thought", text, now_s, PLAN_IMPORTANCE, me.name, "plans", text))
    me.activity.until_s = min(me.activity.until_s, now_s)


async def next_activity(
    me: Resident, observation: Observation, now_s: int, llm: LLM
) -> Doing | None:
    """Choose the next activity and its place.

    None: less than a minute of the day is left, and the resident goes on until midnight.
    """
    here = (observation.x, observation.y)
    hour = _current(me.day.hours, now_s) or me.day.hours[-1]
    if is_sleep(hour.what):
        return _go_to_bed(me, here, hour)
    if hour.end_s < now_s + MINUTE_S:
        me.activity.until_s = hour.end_s
        return None
    task = _current(me.day.tasks, now_s)
    if task is None:
        task = await _decompose(me, hour, now_s, llm)
    if is_sleep(task.what):
        return _go_to_bed(me, here, task)
    (place, thing, state), emoji, _ = await asyncio.gather(
        _where(me, task, hour, now_s, llm),
        _emoji(me, task.what, llm),
        event_triple(me, f"{me.name} is {task.what}", "event_triple", llm),
    )
    goal = target(me, observation, me.atlas.tiles(f"{place}: {thing}" if thing else place))
    me.activity = Activity(task.what, place, thing, state, goal, task.end_s)
    return Doing(task.what, emoji, place, thing, state, until_s=task.end_s)


async def revise_tasks(me: Resident, now_s: int, llm: LLM) -> None:
    """Replan the rest of the present entry, as after a conversation.

    Without tasks left there is nothing to revise: `next_activity` plans the entry as a whole.
    """
    hour = next((hour for hour in me.day.hours if now_s < hour.end_s), None)
    if hour is None or is_sleep(hour.what) or hour.end_s < now_s + MINUTE_S:
        return
    if not any(now_s < task.end_s and task.start_s < hour.end_s for task in me.day.tasks):
        return
    prompt = prompts.new_decomp_schedule(me, hour, now_s)
    answer = await llm.chat(prompt, function="new_decomp_schedule", max_tokens=1000)
    me.day.tasks = [task for task in me.day.tasks if task.end_s <= now_s]
    me.day.tasks += tasks_of(answer.text, now_s, hour.end_s, hour.what)


async def event_triple(me: Resident, text: str, function: str, llm: LLM) -> tuple[str, str, str]:
    """`text` as subject, predicate and object, in the model's words."""
    answer = await llm.chat(prompts.triple(me, text), function=function, max_tokens=30)
    parts = [part.strip(" ()\"'.") for part in first_line(answer.text).split(",", 2)]
    if len(parts) != 3 or not all(parts):
        return me.name, "is", text
    return parts[0], parts[1], parts[2]


def tasks_of(text: str, start_s: int, end_s: int, otherwise: str) -> list[Task]:
    """The tasks in a model's list, a line `what (15 minutes)` each, in sequence up to `end_s`.

    The last one gets the remaining time; `otherwise` is the task if the list is empty.
    """
    tasks: list[Task] = []
    for line in lines_of(text):
        found = _MINUTES.search(line)
        minutes = max(1, int(found[1])) if found else TASK_MINUTES_DEFAULT
        what = (line[: found.start()] if found else line).strip(" ,.:;-")
        if what and start_s < end_s:
            tasks.append(Task(what, start_s, min(start_s + 60 * minutes, end_s)))
            start_s = tasks[-1].end_s
    if not tasks:
        return [Task(otherwise, start_s, end_s)]
    tasks[-1] = replace(tasks[-1], end_s=end_s)
    return tasks


def lines_of(text: str) -> list[str]:
    """The non-empty lines of a list, without bullets and numbers."""
    lines = (_BULLET.sub("", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def first_line(text: str) -> str:
    """The first non-empty line, without quotes and full stop."""
    return next(iter(lines_of(text)), "").strip("\"' .")


def chooses(answer: str, choice: str, others: str) -> bool:
    """Whether an answer says `choice` before any of `others`, which are patterns of words."""
    found = re.search(rf"\b(?:({choice})|{others})\b", answer.lower())
    return found is not None and found[1] is not None


def is_sleep(what: str) -> bool:
    """Whether a plan's text means sleep, in English or another language of imported plans."""
    return _SLEEP.match(what.lower()) is not None


def option_in(answer: str, options: Iterable[str]) -> str | None:
    """The option that an answer equals, otherwise the longest one that occurs in it."""
    said = first_line(answer).strip("{}[]<>").lower()
    named = [option for option in options if option.lower() == said]
    named = named or [option for option in options if option.lower() in said]
    return max(named, key=len, default=None)


async def _wake_up(me: Resident, now_s: int, llm: LLM) -> int:
    """The time of waking up, in seconds after midnight."""
    prompt = prompts.wake_up_hour(me, now_s)
    answer = (await llm.chat(prompt, function="wake_up_hour", max_tokens=8)).text
    found = re.search(r"(\d{1,2})(?::(\d\d))?", answer)
    if found is None or not 0 < int(found[1]) < 12 or int(found[2] or 0) > 59:
        return WAKE_HOUR_DEFAULT * HOUR_S
    return int(found[1]) * HOUR_S + int(found[2] or 0) * 60


async def _look_back(me: Resident, now_s: int, llm: LLM) -> None:
    """Update the goal from the memories of the previous days: three questions."""
    focus = (f"{me.name}'s plans and what matters today", f"how {me.name} felt yesterday")
    memories = list(dict.fromkeys(node for question in focus for node in me.recall(question, 15)))
    notes, feelings = await asyncio.gather(
        *(
            llm.chat(
                prompts.revise_identity(me, what, memories, (), now_s),
                function="revise_identity",
                max_tokens=200,
            )
            for what in ("notes", "feelings")
        )
    )
    texts = (notes.text.strip(), feelings.text.strip())
    prompt = prompts.revise_identity(me, "goal", memories, texts, now_s)
    goal = await llm.chat(prompt, function="revise_identity", max_tokens=200)
    me.goal = first_line(goal.text) or me.goal


async def _decompose(me: Resident, hour: Task, now_s: int, llm: LLM) -> Task:
    """Plan in detail from now to the end of `hour`; returns the first task."""
    known = me.recall(f"{me.name}'s plans: {hour.what}", 8)
    prompt = prompts.task_decomp(me, hour, known, now_s)
    answer = await llm.chat(prompt, function="task_decomp", max_tokens=1000)
    tasks = tasks_of(answer.text, now_s, hour.end_s, hour.what)
    me.day.tasks += tasks
    return tasks[0]


async def _where(
    me: Resident, task: Task, hour: Task, now_s: int, llm: LLM
) -> tuple[str, str, str]:
    """The place of a task, the object used for it, and the object's visible state."""
    known = me.known
    sector = await _choose(me, "action_sector", task, hour, known, "", now_s, llm)
    arena = await _choose(me, "action_arena", task, hour, known[sector], sector, now_s, llm)
    place, things = f"{sector}: {arena}", known[sector][arena]
    if not things:
        return place, "", ""
    thing = await _choose(me, "action_game_object", task, hour, things, place, now_s, llm)
    return place, thing, await _thing_state(me, task.what, thing, llm)


async def _choose(
    me: Resident,
    function: str,
    task: Task,
    hour: Task,
    options: Iterable[str],
    within: str,
    now_s: int,
    llm: LLM,
) -> str:
    """The model's choice among `options`; a default if it names none of them."""
    names = list(options)
    prompt = prompts.where(me, function, task, hour, names, within, now_s)
    answer = await llm.chat(prompt, function=function, max_tokens=15, temperature=0)
    at_home = me.profile.home if function == "action_sector" else me.profile.room
    return option_in(answer.text, names) or (at_home if at_home in names else names[0])


async def _emoji(me: Resident, what: str, llm: LLM) -> str:
    answer = await llm.chat(
        prompts.pronunciatio(me, what), function="pronunciatio", max_tokens=8, temperature=0
    )
    return answer.text.strip()[:8]


async def _thing_state(me: Resident, what: str, thing: str, llm: LLM) -> str:
    """The visible state of `thing` while it is used."""
    prompt = prompts.act_obj_desc(me, what, thing)
    answer = await llm.chat(prompt, function="act_obj_desc", max_tokens=15, temperature=0)
    state = first_line(answer.text)
    for beginning in (f"the {thing} is ", f"{thing} is "):
        if state.lower().startswith(beginning):
            state = state[len(beginning) :]
    await asyncio.gather(
        _emoji(me, f"{thing}: {state}", llm),
        event_triple(me, f"the {thing} is {state}", "act_obj_event_triple", llm),
    )
    return state


def fall_asleep(me: Resident) -> Doing:
    """The activity of sleeping in bed."""
    return Doing(SLEEPING, "💤", me.activity.place, "bed", asleep=True)


def _go_to_bed(me: Resident, here: Tile, task: Task) -> Doing:
    """Go to bed without calling a model; the resident sleeps on arrival."""
    place = f"{me.profile.home}: {me.profile.room}"
    me.activity = Activity(TO_BED, place, "bed", "", me.bed, task.end_s, asleep=True)
    return fall_asleep(me) if here == me.bed else Doing(TO_BED, "🛏️", place, "bed")


def _current(tasks: Iterable[Task], now_s: int) -> Task | None:
    """The first task that lasts at least another minute, if it begins within a minute."""
    task = next((task for task in tasks if now_s + MINUTE_S <= task.end_s), None)
    return task if task and task.start_s <= now_s + MINUTE_S else None


def _same(one: str, other: str) -> bool:
    return one.lower() == other.lower()
