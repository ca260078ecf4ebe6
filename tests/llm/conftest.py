"""A real SGLang."""

from tests.real_engines import sglang_url

__all__ = ["sglang_url"]
