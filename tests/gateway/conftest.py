"""Real engines behind a gateway."""

from tests.real_engines import sglang_url, vllm_url

__all__ = ["sglang_url", "vllm_url"]
