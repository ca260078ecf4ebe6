"""The metadata of a trace as JSON: the `metropolis` entry of the file's metadata."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import numpy as np

from metropolis.maps.map import GridMap
from metropolis.trace.schema import TraceMeta
from metropolis.trace.validate import check_slips, metadata_fault
from metropolis.types import MetropolisError

FORMAT = "metropolis-trace"
VERSION = 2
GRAPH_NODES_MAX = 1 << 24
"""Positions are float32, which distinguish no more nodes."""
_TEXTS = ("name", "metric", "movement_origin", "calls_origin", "source")
_NUMBERS = ("perception_radius", "max_velocity", "step_s")
_REQUIRED = ("agents", "perception_radius", "max_velocity")
_FIELDS: dict[str, tuple[Any, str]] = {
    "agents": (tuple[str, ...], "a list of names"),
    **dict.fromkeys(_TEXTS, (str, "a text")),
    **dict.fromkeys(_NUMBERS, (float, "a number")),
    "joint_radius": (float | None, "a number"),
}
"""Field -> its type, and what it should be."""
_LAYERS: dict[str, np.dtype[Any]] = {
    "walls": np.dtype("u1"),
    "arenas": np.dtype("<i4"),
    "objects": np.dtype("<i4"),
}
"""Arrays of a map and the types of their tiles, in row order."""


def meta_to_json(meta: TraceMeta) -> str:
    """The JSON text of `meta`."""
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "agents": meta.agents}
    content |= {key: getattr(meta, key) for key in _TEXTS + _NUMBERS}
    content["start"] = meta.start.isoformat()
    if meta.joint_radius is not None:
        content["joint_radius"] = meta.joint_radius
    content["map"] = None if meta.map is None else _map_to_json(meta.map)
    if meta.graph is not None:
        content["graph"] = graph_to_json(meta.graph)
    return json.dumps(content, ensure_ascii=False)


def meta_from_json(text: bytes | str, path: object) -> TraceMeta:
    """Parse the metadata `text` of the file `path`; only types are checked."""
    content = _content(text, path)
    known: dict[str, Any] = {"name": ""}
    for field, (kind, right) in _FIELDS.items():
        if field in content:
            try:
                known[field] = msgspec.convert(content[field], kind)
            except msgspec.ValidationError:
                raise metadata_fault(path, field, content[field], right) from None
    if "start" in content:
        try:
            known["start"] = datetime.fromisoformat(content["start"])
        except (ValueError, TypeError):
            right = "a date and time such as 2023-02-13T00:00:00"
            raise metadata_fault(path, "start", content["start"], right) from None
    if content.get("map") is not None:
        known["map"] = _map_from_json(content["map"], path)
    if content.get("graph") is not None:
        known["graph"] = _graph_from_json(content["graph"], path)
    return TraceMeta(**known)


def _content(text: bytes | str, path: object) -> dict[str, Any]:
    """The JSON object, of this format and version, with all fields that a trace needs."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MetropolisError(
            f"{path}, metadata: the entry 'metropolis' is not JSON ({error});"
            " it should be an object as in docs/trace-format.md"
        ) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else content
        raise metadata_fault(path, "format", found, f"{FORMAT!r}")
    if content.get("version") != VERSION:
        raise metadata_fault(
            path,
            "version",
            content.get("version"),
            f"{VERSION}, which this release reads: recreate the file with `metropolis trace"
            " import` or `metropolis trace generate`, or by running the world again",
        )
    known = ("format", "version", *_FIELDS, "start", "map", "graph")
    check_slips(content, known, f"{path}, metadata")
    for field in _REQUIRED:
        if field not in content:
            raise MetropolisError(f"{path}, metadata: {field} is missing; a trace should state it")
    return content


def graph_to_json(neighbours: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The number of nodes of a graph, and its edges, each once."""
    edges = [(i, j) for i, of in enumerate(neighbours) for j in of if i < j]
    return {"nodes": len(neighbours), "edges": edges}


def _graph_from_json(content: Any, path: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(content, dict):
        raise MetropolisError(f"{path}, metadata: graph should be an object or null")
    nodes, edges = content.get("nodes"), content.get("edges")
    if type(nodes) is not int or not 0 < nodes <= GRAPH_NODES_MAX:
        right = f"a number of nodes, 1 to {GRAPH_NODES_MAX}"
        raise metadata_fault(path, "graph.nodes", nodes, right)
    if not isinstance(edges, list):
        raise metadata_fault(path, "graph.edges", edges, "a list of pairs of nodes")
    neighbours: list[set[int]] = [set() for _ in range(nodes)]
    for number, edge in enumerate(edges):
        right = f"a pair of different nodes, each 0 to {nodes - 1}"
        ends = edge if isinstance(edge, list) else []
        fit = {node for node in ends if type(node) is int and 0 <= node < nodes}
        if len(ends) != 2 or len(fit) != 2:
            raise metadata_fault(path, f"graph.edges[{number}]", edge, right)
        neighbours[ends[0]].add(ends[1])
        neighbours[ends[1]].add(ends[0])
    return tuple(tuple(sorted(of)) for of in neighbours)


def _map_to_json(map: GridMap) -> dict[str, Any]:
    packed = {
        layer: base64.b64encode(
            zlib.compress(np.ascontiguousarray(getattr(map, layer)).astype(tile).tobytes(), 9)
        ).decode()
        for layer, tile in _LAYERS.items()
    }
    return {
        "name": map.name,
        "width": map.width,
        "height": map.height,
        **packed,
        "arena_names": map.arena_names,
        "object_names": map.object_names,
    }


def _map_from_json(content: Any, path: object) -> GridMap:
    def refuse(field: str, right: str) -> MetropolisError:
        return MetropolisError(f"{path}, metadata: map.{field} should be {right}")

    if not isinstance(content, dict):
        raise MetropolisError(f"{path}, metadata: map should be an object or null")
    name, width, height = (content.get(key) for key in ("name", "width", "height"))
    if not isinstance(name, str):
        raise refuse("name", "a text")
    if type(width) is not int or type(height) is not int or not 0 < width * height < 1 << 31:
        raise refuse("width and map.height", "positive numbers of tiles")
    layers = {}
    for layer, tile in _LAYERS.items():
        right = f"the {width} x {height} tiles as {tile.name}, little-endian, zlib, base64"
        size = width * height * tile.itemsize
        try:
            packed = base64.b64decode(content[layer], validate=True)
            tiles = zlib.decompressobj().decompress(packed, size + 1)
        except (KeyError, TypeError, ValueError, binascii.Error, zlib.error):
            raise refuse(layer, right) from None
        if len(tiles) != size:
            raise refuse(layer, right)
        layers[layer] = np.frombuffer(tiles, tile).reshape(height, width)
    names = {}
    for layer, field in (("arenas", "arena_names"), ("objects", "object_names")):
        found = content.get(field)
        if not isinstance(found, list) or not found or not all(isinstance(n, str) for n in found):
            raise refuse(field, 'a list of names that begins with ""')
        if layers[layer].min() < 0 or layers[layer].max() >= len(found):
            raise refuse(layer, f"indices into the {len(found)} {field}")
        names[field] = tuple(found)
    return GridMap(
        name=name,
        walls=layers["walls"] != 0,
        arenas=layers["arenas"].astype(np.int32),
        objects=layers["objects"].astype(np.int32),
        **names,
    )
