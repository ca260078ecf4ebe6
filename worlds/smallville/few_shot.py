"""Worked examples in prompts; their people and places are not of the town."""

from __future__ import annotations

PLACES = {
    "action_sector": (
        "For instance, Nora Quist is at home in Hill House and knows Hill House, the Cross Keys,"
        " the market and the school. She fries eggs in Hill House, where she is; sells honey at the"
        " market, where she works; has lunch with a friend at the Cross Keys, because her plan"
        " names it; and sings with the choir at the school. She does not go to a house where she"
        " does not live unless somebody has asked her to.\n\n"
    ),
    "action_arena": (
        "For instance, Nora Quist is at Hill House, which has a kitchen, a bathroom, a sitting"
        " room, and her own room. She fries eggs in the kitchen, reads the paper in the sitting"
        " room, and gets dressed in her own room.\n\n"
    ),
    "action_game_object": (
        "For instance, Nora Quist is in the kitchen of Hill House, which has a stove, a sink, a"
        " cupboard and a table. She fries eggs at the stove, washes a cup at the sink, and eats at"
        " the table.\n\n"
    ),
}
"""Choices of a place, by function."""

DAY = """As an example, the day of Nora Quist, who keeps bees and sells honey at a market:
[00:00-06:00] sleeping
[06:00-07:00] getting up and having breakfast
[07:00-08:00] looking after the hives in the garden
[08:00-09:00] packing jars of honey into crates
[09:00-10:00] walking to the market and setting up the stall
[10:00-11:00] selling honey at the market
[11:00-12:00] selling honey at the market
[12:00-13:00] having lunch at the Cross Keys
[13:00-14:00] selling honey at the market
[14:00-15:00] selling honey at the market
[15:00-16:00] buying sugar and wire at the ironmonger's
[16:00-17:00] mending frames in the shed
[17:00-18:00] mending frames in the shed
[18:00-19:00] having dinner
[19:00-20:00] singing with the choir in the school hall
[20:00-21:00] singing with the choir in the school hall
[21:00-22:00] reading in the sitting room
[22:00-24:00] sleeping
"""
"""A schedule."""
