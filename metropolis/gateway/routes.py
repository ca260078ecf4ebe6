"""The routes of engines: ordered ones, which generate, and those forwarded without ordering.

Routes that change an engine (weights, caches, adapters, aborts) are in neither list.
"""

from __future__ import annotations

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES, GENERATE = "/v1/responses", "/v1/messages", "/generate"

ORDERED = {
    CHATS: frozenset(("priority", "rid")),
    COMPLETIONS: frozenset(("priority", "rid")),
    GENERATE: frozenset(("priority", "rid")),
    RESPONSES: frozenset(("priority",)),
    MESSAGES: frozenset[str](),
}
"""By route, those of the gateway's fields that SGLang's and vLLM's bodies have."""
PROMOTE = "/v1/promote"
"""Route to report that the requests of a program in the gateway are no longer speculative."""
ONE_RESPONSE = f"{RESPONSES}/{{response:[A-Za-z0-9_-]+}}"
"""Route of one response; other characters, such as those of `..`, could form another route."""
OF_RESPONSES = (
    ("GET", ONE_RESPONSE),
    ("DELETE", ONE_RESPONSE),
    ("POST", f"{ONE_RESPONSE}/cancel"),
)
"""Routes served by the engine that generated the response."""
SERVER_INFO = ("/server_info", "/get_server_info")
"""Routes whose answers contain the engine's keys, which the gateway removes."""
PASSED = (
    *(
        ("POST", path)
        for path in (
            "/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score",
            "/classify", "/pooling", "/encode", "/v1/messages/count_tokens",
            "/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize",
        )
    ),
    *(("GET", path) for path in ("/model_info", "/get_model_info", "/health_generate")),
    *(("GET", path) for path in SERVER_INFO),
)  # fmt: skip
