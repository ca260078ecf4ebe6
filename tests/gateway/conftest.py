"""The real SGLang is that of the backends' tests."""

from __future__ import annotations

from tests.llm.conftest import sglang_url

__all__ = ["sglang_url"]
