"""The prompts of residents, one function each; most begin with the resident (`identity.py`).

Facts are lines `Heading: text`, which models read well. Lengths are near those of the published
code of Park et al. (2023), which `docs/smallville.md` compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from metropolis.worlds.smallville.dialogue import Line
from metropolis.worlds.smallville.few_shot import DAY, PLACES
from metropolis.worlds.smallville.identity import (
    day_name,
    named,
    person,
    places,
    topics,
    whole,
)
from metropolis.worlds.smallville.memory import Node, created
from metropolis.worlds.smallville.state import Task, clock, day_of, end_clock

if TYPE_CHECKING:
    from metropolis.worlds.smallville.resident import Resident
    from metropolis.worlds.smallville.world import Seen


def town(me: Resident) -> str:
    """The places of the town that the resident knows."""
    places = (f"{sector} ({', '.join(arenas)})" for sector, arenas in me.known.items())
    return f"Places in town: {'; '.join(places)}\n"


def poignancy(me: Resident, function: str, text: str) -> str:
    """Rate the importance of an event, a thought or a conversation."""
    kind = function.removesuffix("_poignancy")
    kind = "conversation" if kind == "chat" else kind
    return (
        f"{person(me)}\nOn a scale from 1 to 10, where 1 is wholly mundane (brushing"
        " one's teeth, making the bed) and 10 is deeply moving (a broken engagement, an acceptance"
        f" to college), rate how much the following {kind} is likely to matter to {me.name}, who is"
        f" {me.activity.what or 'just up'} at present.\n"
        f"{kind.capitalize()}: {text}\nAnswer with the number and, in two or three words, the"
        " reason, as: 2, an everyday chore.\nRating:"
    )


def wake_up_hour(me: Resident, now_s: int) -> str:
    """Choose the time of waking up."""
    return (
        f"{person(me, now_s)}\nAt what time in the morning does {me.name} wake"
        " up today? Answer with the time alone, as 7:15.\nWakes up at:"
    )


def daily_plan(me: Resident, wake_s: int, now_s: int) -> str:
    """Outline the day."""
    return (
        f"{whole(me, now_s)}{town(me)}\nIn five to eight lines, what is"
        f" {me.name}'s plan for the day, from {clock(wake_s)} to bedtime? Write one line for each"
        " part of the day, with its time and place, and no other text.\n"
        f"Plan of {me.profile.first_name}:\n- wake up at {clock(wake_s)}\n-"
    )


def plan_as_thought(me: Resident, now_s: int) -> str:
    """The plan of the day as a memory."""
    return f"{me.name}'s plan for {day_name(me, now_s)}: {'; '.join(me.day.outline)}."


def revise_identity(
    me: Resident, what: str, memories: Sequence[Node], texts: Sequence[str], now_s: int
) -> str:
    """Review the previous days by their dated memories: `notes`, `feelings`, or a new `goal`."""
    asked = {
        "notes": f"What should {me.name} bear in mind when planning today? Mention what was agreed"
        " with others, with time and place, if anything was.",
        "feelings": f"How does {me.name} look back at yesterday? Two sentences, in the first"
        " person.",
        "goal": f"In the light of this, what is {me.name} after at present? One sentence, in the"
        " third person, that keeps of the old goal what still holds.",
    }[what]
    notes = "".join(f"Note: {text}\n" for text in texts)
    who = person(me, now_s) + topics(me)
    return f"{who}\n{me.name} remembers:\n{_by_day(me, memories)}{notes}\n{asked}\nAnswer:"


def hourly_schedule(me: Resident, hours: Sequence[Task], hour: int, now_s: int) -> str:
    """Choose the activity of an hour of the day."""
    return (
        f"{whole(me, now_s)}{town(me)}\n"
        f"We fill in {me.name}'s schedule for the day hour by hour. Each entry names one activity,"
        " with its place if it is not at home, as 'having lunch at the Heron Inn' or 'sleeping'. An"
        " activity that goes on is repeated in the same words.\n\n"
        f"{DAY}\nSchedule:\n{_schedule(hours)}\n"
        f"[{hour:02d}:00-{hour + 1:02d}:00] {me.profile.first_name} is"
    )


def task_decomp(me: Resident, hour: Task, known: Sequence[Node], now_s: int) -> str:
    """Split an entry of the schedule into tasks."""
    minutes = (hour.end_s - now_s) // 60
    return (
        f"{whole(me, now_s)}{town(me)}\nWhat {me.name} has in mind:\n"
        f"{_list(known)}\n{_around(me, hour)}From {clock(now_s)} to {end_clock(hour)}"
        f" ({minutes} minutes), {me.name} is {hour.what}. Break this down into tasks of 5 to 20"
        " minutes that somebody could watch being carried out, in order, and let their times add up"
        f" to {minutes} minutes. One line a task, in the form: task (10 minutes).\nTasks:\n1)"
    )


def new_decomp_schedule(me: Resident, hour: Task, now_s: int) -> str:
    """Replan the rest of the hour from `now_s`, after a conversation or a wait."""
    planned = [task for task in me.day.tasks if task.end_s > now_s and task.start_s < hour.end_s]
    minutes = (hour.end_s - now_s) // 60
    return (
        f"{whole(me, now_s)}\nThis is what {me.name} had planned"
        f" for this part of the day ({hour.what}):\n{_schedule(planned)}\n\nIt is {clock(now_s)};"
        f" a conversation or a wait came in between. Write what {me.name} does for the {minutes}"
        f" minutes until {end_clock(hour)}: what is left of the plan, shortened where needed, and"
        " changed if a conversation calls for it. One line a task, in the form: task (10 minutes)."
        "\nTasks:\n1)"
    )


def where(
    me: Resident,
    function: str,
    task: Task,
    hour: Task,
    options: Sequence[str],
    within: str,
    now_s: int,
) -> str:
    """Choose the sector, the arena in it, or the object for a task."""
    kind = {"action_sector": "place", "action_arena": "room"}.get(function, "object")
    inside = f"{me.name} goes to {within}.\n" if within else ""
    who = person(me) + places(me) if kind == "place" else named(me) + places(me)
    return (
        f"{who}\n{PLACES[function]}At {clock(now_s)}, {me.name} is about to do this: {task.what}\n"
        f"It is part of: {hour.what}\n{inside}"
        f"Known {kind}s: {', '.join(options)}\n"
        f"Which {kind} is the best for it? Stay where one is if the task can be done there; do not"
        f" enter the bedroom of another. Answer with one {kind} of the list alone.\n"
        f"{kind.capitalize()}:"
    )


def pronunciatio(me: Resident, what: str) -> str:
    """Express an activity as one or two emoji."""
    return (
        f"Write the activity below, done by {me.name}, {me.profile.occupation}, as one or two"
        " emoji that make it recognisable at a glance, and nothing else.\n"
        "Activity: watering the roses\nEmoji: 🌹💧\n"
        "Activity: writing a letter to a friend\nEmoji: ✉️\n"
        f"Activity: {what}\nEmoji:"
    )


def triple(me: Resident, text: str) -> str:
    """Convert a sentence to subject, predicate, object."""
    return (
        "Write the sentence as a subject, a predicate and an object, in the form"
        " (subject, predicate, object); give the subject its full name.\n"
        "Sentence: Nora Quist is watering the roses\n(Nora Quist, waters, roses)\n"
        "Sentence: the oven is heating a pie\n(oven, heats, pie)\n"
        "Sentence: Nora Quist and Jan Oster are conversing about a bicycle\n"
        "(Nora Quist, talks about, bicycle)\n"
        f"These are sentences from the life of {me.name}, {me.profile.occupation}.\n"
        f"Sentence: {text}\n("
    )


def act_obj_desc(me: Resident, what: str, thing: str) -> str:
    """Describe the visible state of an object while it is used."""
    return (
        f"In what state is an object while somebody uses it? Name the state in two to five words,"
        f" as it would be seen by somebody who comes in.\n"
        f"Nora Quist is baking bread with the oven: the oven is heating two loaves\n"
        f"Nora Quist is writing a letter at the desk: the desk is strewn with drafts\n"
        f"{me.name}, {me.profile.occupation}, is {what} at the {thing}: the {thing} is"
    )


def decide_to_talk(me: Resident, other: str, doing: str, known: Sequence[Node], now_s: int) -> str:
    """Decide whether to begin a conversation."""
    talked, chat = me.talked.get(other), me.memory.last_chat(other, me.embed)
    last = "have not talked yet" if talked is None else f"last talked {ago(me, talked, now_s)}"
    last += f", about {chat.text.partition(' about ')[2]}" if chat else ""
    return (
        f"{person(me, now_s)}\nWhat comes to {me.name}'s mind:\n"
        f"{_list(known)}\n{_relation(me, other)}"
        f"It is {clock(now_s)}. {me.name} is {me.activity.what or 'up'}, and sees"
        f" {other}, who is {doing}. The two {last}.\n"
        f"Would {me.name} like to talk with {other} now? Consider how well they know each other,"
        " whether there is something to tell or to ask, and whether the moment suits both."
        " Answer yes or no.\nAnswer:"
    )


def decide_to_react(me: Resident, other: Seen, now_s: int) -> str:
    """Decide whether to wait for another resident who uses the same object."""
    return (
        f"{whole(me, now_s)}\nIt is {clock(now_s)}. {me.name} is"
        f" on the way to the {me.activity.thing} in {me.activity.place} for"
        f" {me.activity.what}, and sees {other.name} there, who is {other.doing}.\n"
        f"Should {me.name} wait until {other.name} has finished, or go on as planned? Answer wait"
        " or go on.\nAnswer:"
    )


def summarize_relationship(me: Resident, other: str, known: Sequence[Node], now_s: int) -> str:
    """Describe the relationship of two residents."""
    return (
        f"{person(me, now_s)}{_relation(me, other)}\n"
        f"What {me.name} remembers that may bear on {other}:\n{_list(known)}\n"
        f"In two or three sentences, how does {me.name} know {other}, how do they feel about each"
        f" other, and what has passed between them lately?\n"
        f"{me.profile.first_name} and {other.split()[0]}:"
    )


def iterative_convo(
    me: Resident,
    other: str,
    doing: str,
    relation: str,
    known: Sequence[Node],
    lines: Sequence[Line],
    now_s: int,
) -> str:
    """Write the next utterance of a conversation."""
    return (
        f"{whole(me, now_s)}\nWhat comes to {me.name}'s mind:\n"
        f"{_list(known)}\nRelation: {relation}\n"
        f"Setting: it is {clock(now_s)} at {me.activity.place or me.profile.home};"
        f" {me.name} was {me.activity.what or 'about'} when meeting {other}, who was {doing}.\n\n"
        f"Conversation so far:\n{_transcript(lines) or '(nothing has been said)'}\n\n"
        f"What does {me.name} say next to {other}? Two to four natural spoken sentences that fit"
        f" the setting, do not repeat what has been said, and bring up what {me.profile.first_name}"
        " wants to tell or to know. Say whether the conversation ends with it. Answer in JSON:"
        ' {"utterance": "...", "ends": false}\n'
        f"{me.name}:"
    )


def summarize_conversation(me: Resident, other: str, lines: Sequence[Line]) -> str:
    """Summarize a conversation."""
    return (
        f"Conversation between {me.name} and {other}:\n{_transcript(lines)}\n"
        "In at most twelve words, what was it about? Complete the sentence.\n"
        "They were conversing about"
    )


def on_conversation(
    me: Resident, function: str, other: str, lines: Sequence[Line], now_s: int
) -> str:
    """Draw a conclusion from a conversation for the day's plan, or note what was remarkable."""
    asked = {
        "planning_thought_on_convo": f"In one sentence beginning with '{me.name}', what should"
        f" {me.name} remember from this for planning the day, with time and place if any?",
        "memo_on_convo": f"In one sentence beginning with '{me.name}', what did {me.name} find most"
        f" worth remembering in what {other} said? Keep news word for word.",
    }[function]
    return (
        f"{named(me, now_s)}\nConversation between {me.name} and {other}:\n{_transcript(lines)}\n"
        f"{asked}\nAnswer:"
    )


def focal_pt(me: Resident, memories: Sequence[Node]) -> str:
    """Choose questions for reflection."""
    return (
        f"{named(me)}\nRecent memories of {me.name}:\n{_list(memories)}\nGiven these alone, what"
        " are the three most telling questions one could answer about the people in them? One line"
        " a question.\n1)"
    )


def insight_and_guidance(me: Resident, question: str, memories: Sequence[Node]) -> str:
    """Draw insights from memories."""
    return (
        f"{named(me)}{topics(me)}\nStatements about {me.name}'s days:\n{_list(memories)}\nQuestion:"
        f" {question}\nWhich five insights can be drawn from the statements? One line each, as a"
        " sentence with the numbers of the statements it rests on, in the form: insight (because of"
        " 1, 5, 3)\n1)"
    )


def interview(me: Resident, question: str, known: Sequence[Node], now_s: int) -> str:
    """Answer an interviewer."""
    return (
        f"{whole(me, now_s)}\nWhat comes to {me.name}'s mind:\n"
        f"{_list(known)}\nAt present: {me.doing}\n"
        f"An interviewer, who is not of the town, asks {me.name} a question. Answer as"
        f" {me.profile.first_name} in the first person, in one to four sentences, from what is"
        " written above alone; say so if it holds no answer.\n"
        f"Question: {' '.join(question.split())}\nAnswer:"
    )


def ago(me: Resident, then_s: int, now_s: int) -> str:
    """The time `then_s` as one says it at `now_s`: with its day, if that is not today."""
    days = day_of(now_s) - day_of(then_s)
    if days == 0:
        return f"today at {clock(then_s)}"
    if days == 1:
        return f"yesterday at {clock(then_s)}"
    return f"on {day_name(me, then_s)}"


def _relation(me: Resident, other: str) -> str:
    """What the resident knew of another at first."""
    sentence = me.profile.relations.get(other)
    return f"Knows: {sentence}\n" if sentence else ""


def _around(me: Resident, hour: Task) -> str:
    """The entries of the schedule before and after `hour`."""
    hours = me.day.hours
    place = hours.index(hour)
    near = hours[max(0, place - 1) : place + 2]
    entries = "; ".join(f"{clock(task.start_s)}-{end_clock(task)} {task.what}" for task in near)
    return f"Schedule: {entries}\n"


def _by_day(me: Resident, nodes: Iterable[Node]) -> str:
    """Memories in order of time, under the day of each."""
    lines, day = "", ""
    for number, node in enumerate(sorted(nodes, key=created), 1):
        if day != (day := day_name(me, node.created_s)):
            lines += f"On {day}:\n"
        lines += f"{number}. {node.text}\n"
    return lines


def _schedule(tasks: Iterable[Task]) -> str:
    """A line per task: its times and what it is."""
    return "\n".join(f"[{clock(task.start_s)}-{end_clock(task)}] {task.what}" for task in tasks)


def _transcript(lines: Iterable[Line]) -> str:
    return "".join(f"{line.speaker}: {line.text}\n" for line in lines)


def _list(nodes: Iterable[Node]) -> str:
    return "".join(f"{number}. {node.text}\n" for number, node in enumerate(nodes, 1))
