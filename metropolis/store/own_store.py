"""A user's store, named as FILE.py:CLASS; an error in one of its methods names class and method."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from metropolis.store.base import AsyncStore, Server, Store, StoreError
from metropolis.types import MetropolisError
from metropolis.world.user_code import file_of, load_function
from metropolis.world.user_errors import describe_error

T = TypeVar("T")


def open_own_server(reference: str) -> Server:
    """Make the server. Raises MetropolisError if the class does not exist or is no Server.

    An exception in a method of the server, its stores or their AsyncStores becomes a StoreError.
    """
    about = "is a metropolis.store.base.Server and is made without arguments"
    server = load_function(reference, about, kind="class")()
    if not isinstance(server, Server):
        name = reference.partition(".py:")[2]
        raise MetropolisError(f"{file_of(reference)}: {name} is not a class that {about}")
    return _with_store_errors(server, Server)


def _with_store_errors(owner: T, interface: type) -> T:
    """Replace the methods of `owner` that `interface` declares."""
    for name, declared in vars(interface).items():
        if callable(declared) and not name.startswith("_"):
            vars(owner)[name] = _converting_errors(owner, name)
    return owner


def _converting_errors(owner: Any, name: str) -> Callable[..., Any]:
    """The method `name` of `owner`, whose exceptions become StoreErrors."""
    method = getattr(type(owner), name).__get__(owner)  # not one that was replaced before

    def failed(error: Exception) -> StoreError:
        sentence = describe_error(error, owner)
        return StoreError(f"the store {type(owner).__name__} failed in {name}: {sentence}")

    if iscoroutinefunction(method):

        @wraps(method)
        async def call_async(*arguments: Any, **options: Any) -> Any:
            try:
                return await method(*arguments, **options)
            except MetropolisError:
                raise
            except Exception as error:
                raise failed(error) from error

        return call_async

    @wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            found = method(*arguments, **options)
        except MetropolisError:
            raise
        except Exception as error:
            raise failed(error) from error
        for interface in (Store, AsyncStore):
            if isinstance(found, interface):
                return _with_store_errors(found, interface)
        return found

    return call
