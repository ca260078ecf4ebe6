"""Posts and reactions without a model: drawn from a few sentences per topic."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

from metropolis.worlds.social.person import TOPICS

SENTENCES = {
    "bread": [
        "The second loaf is always better than the first.",
        "Day three of the sourdough, and it has a name now.",
        "Whoever says bread needs no salt has never been hungry.",
    ],
    "birds": [
        "A jay has taken the good nuts again and left the rest for the tits.",
        "First blackbird before the alarm this morning.",
        "I counted eleven sparrows, then a cat.",
    ],
    "bikes": [
        "Headwind both ways; nobody can explain it to me.",
        "New chain, new person.",
        "The bridge is closed, so I have seen parts of town I did not know.",
    ],
    "books": [
        "I have reached the chapter where the map at the front stops helping.",
        "Lent a book in May. Today I got back a different one.",
        "Fell asleep on page nine for the ninth time.",
    ],
    "garden": [
        "The slugs have eaten everything but the weeds.",
        "One tomato. It is perfect. I cannot eat it.",
        "Somebody tell the courgettes that it is enough.",
    ],
    "music": [
        "We played it too fast again, and it was better.",
        "The drummer has bought a metronome; we are all polite about it.",
        "Two new songs, one new string, no new neighbours so far.",
    ],
    "weather": [
        "Four seasons before lunch.",
        "The forecast said sun, and I believed it, in these shoes.",
        "Fog so thick that the hill was only a rumour.",
    ],
    "trains": [
        "The 8:12 is now the 8:40, and at peace with it.",
        "We have stopped in a field. It is a nice field.",
        "An announcement to say that there will be an announcement.",
    ],
}
OPENERS = ["", "", "", "Honestly: ", "Small news: ", "For the record: "]


def author(asked: Any, draw: Random) -> str:
    """Answer a request in place of a model."""
    if asked.function == "react":
        return _react(asked.text, draw)
    topic = next(name for name, about in TOPICS.items() if f"about {about}." in asked.text)
    return draw.choice(OPENERS) + draw.choice(SENTENCES[topic])


def _react(question: str, draw: Random) -> str:
    """Like a post about one's interests, most of the time, and share some of these."""
    interests = re.findall(r"care about (\w+) and (\w+)", question)[0]
    topics = re.findall(r"^\d+\. \[(\w*)\]", question, re.MULTILINE)
    dear = [number for number, topic in enumerate(topics, 1) if topic in interests]
    liked = draw.choice(dear) if dear and draw.random() < 0.8 else 0
    return json.dumps({"like": liked, "share": bool(liked) and draw.random() < 0.35})
