"""Language models: the agent's interface, the configuration of runs, and the errors of both."""

from metropolis.llm.agent import LLM
from metropolis.llm.base import (
    Backend,
    BudgetExhausted,
    Completion,
    LLMError,
    MalformedError,
    Message,
    RateLimitedError,
    RefusedError,
    Request,
    TimedOutError,
    UnavailableError,
    UnreachableError,
)
from metropolis.llm.blocking import BlockingLLM
from metropolis.llm.call_log import CallRecord
from metropolis.llm.client import Client
from metropolis.llm.journal import Journal
from metropolis.llm.usage import Prices, Usage

__all__ = [
    "LLM",
    "Backend",
    "BlockingLLM",
    "BudgetExhausted",
    "CallRecord",
    "Client",
    "Completion",
    "Journal",
    "LLMError",
    "MalformedError",
    "Message",
    "Prices",
    "RateLimitedError",
    "RefusedError",
    "Request",
    "TimedOutError",
    "UnavailableError",
    "UnreachableError",
    "Usage",
]
