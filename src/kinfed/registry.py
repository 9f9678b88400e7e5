"""Names for what can be chosen: built in, from an installed package, or anywhere as ``package.module:Name``."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from kinfed.errors import InputError, among

__all__ = ["Registry", "import_path", "imported", "nothing_from_files"]

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """What can be chosen of one kind, by name; each is imported when it is asked for.

    A name is one of kinfed's own, an entry point of an installed package in the group ``kinfed.KINDs``, or the import
    path ``package.module:Name``, which works everywhere but is not listed.

    Args:
        kind: What these are, one of them: ``method``.
        own: kinfed's own names and their import paths, or the things themselves where these are no work to import.
        check: Says what is wrong with a thing from elsewhere, as the end of "'NAME' …"; None if nothing is.
        adapt: Makes one of this kind of a thing from elsewhere and its name.

    >>> from kinfed.methods import METHODS
    >>> METHODS["fedprox"](mu=0.1)
    FedProx(mu=0.1)
    """

    def __init__(
        self,
        kind: str,
        own: Mapping[str, str] | Mapping[str, T],
        check: Callable[[Any], str | None] = lambda _: None,
        adapt: Callable[[str, Any], T] = lambda _, thing: thing,
    ) -> None:
        self.kind, self.group = kind, f"kinfed.{kind}s"
        self._own: dict[str, str | T] = {**own}
        self._check, self._adapt = check, adapt

    def __iter__(self) -> Iterator[str]:
        return iter([*self._own, *(name for name in _entry_points(self.group) if name not in self._own)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (":" in name or name in self._own or name in _entry_points(self.group))

    def __getitem__(self, name: str) -> T:
        """What a name means.

        Raises:
            KeyError: If there is no such name.
            InputError: If what it names cannot be imported, or is nothing of this kind.
        """
        if name in self._own:
            own = self._own[name]
            found: T = imported(own, self.kind, ask=False) if isinstance(own, str) else own
            return found
        if ":" in name:
            return self._checked(name, imported(name, self.kind))
        point = _entry_points(self.group)[name]
        try:
            loaded = point.load()
        except Exception as error:  # whatever the package does when it is imported
            raise InputError(f"{self.kind}: {name!r} of {self.origin(name)} cannot be imported: {error}") from error
        return self._checked(name, loaded)

    def find(self, name: str) -> T:
        """What a name means; one that is not known is told with the nearest.

        Raises:
            InputError: If there is no such name, or what it names cannot be used.
        """
        among(self.kind, name, self)
        return self[name]

    def origin(self, name: str) -> str:
        """Where a name comes from: ``kinfed``, an installed package with its version, or the user's own module."""
        if name in self._own:
            return "kinfed"
        if ":" in name:
            return name.partition(":")[0]
        package = _entry_points(self.group)[name].dist
        return "an entry point" if package is None else f"{package.name} {package.version}"

    def installed(self, name: str) -> bool:
        """Whether a name is kinfed's own or an installed package's, and no import path, which any file may say."""
        return name in self and ":" not in name

    def name_of(self, thing: Any) -> str | None:
        """The name of a thing that is registered or can be imported, the shortest there is; None if it has none."""
        path = import_path(thing)
        for name, own in self._own.items():
            if own is thing or (path is not None and own == path):
                return name
        for name, point in _entry_points(self.group).items():
            if path is not None and point.value == path:
                return name
        return path

    def _checked(self, name: str, found: Any) -> T:
        if fault := self._check(found):
            raise InputError(f"{self.kind}: {name!r} {fault}")
        return self._adapt(name, found)


@functools.cache
def _entry_points(group: str) -> Mapping[str, importlib.metadata.EntryPoint]:
    """Those of a group by name; of two of one name the first."""
    points: dict[str, importlib.metadata.EntryPoint] = {}
    for point in importlib.metadata.entry_points(group=group):
        points.setdefault(point.name, point)
    return points


_ASKED: ContextVar[tuple[Collection[str], str] | None] = ContextVar("asked", default=None)


@contextlib.contextmanager
def nothing_from_files(asked: Collection[str], file: object, *, allow: bool = False) -> Iterator[None]:
    """Import no ``package.module:Name`` meanwhile that only a file names: what lies in a folder runs no code.

    Args:
        asked: Names that somebody gave in this very call; these are imported.
        file: Where other names come from, for the message.
        allow: Whether all are imported nevertheless.
    """
    token = _ASKED.set(None if allow else (asked, str(file)))
    try:
        yield
    finally:
        _ASKED.reset(token)


def imported(path: str, what: str, *, ask: bool = True) -> Any:
    """The thing at an import path, ``package.module:Name``; the working directory is looked in too.

    Args:
        path: Module and name; the name may have dots.
        what: What is imported, for messages: the name of a field.
        ask: Whether `nothing_from_files` holds.

    Raises:
        InputError: If there is no such thing, importing it fails, or only a file names it.
    """
    asked = _ASKED.get() if ask else None
    if asked is not None and path not in asked[0]:
        raise InputError(
            f"{what}: {path!r} is named in {asked[1]}, and importing it runs its code; --allow-code "
            "(allow_code=True) does so"
        )
    module, _, name = path.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except Exception as error:  # whatever the module does when it is imported
        raise InputError(f"{what}: {path!r} cannot be imported: {error}") from error
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(os.getcwd())


def import_path(thing: Any) -> str | None:
    """``package.module:Name`` of a class or function, if that leads back to it; None of a lambda or in a notebook.

    >>> import_path(InputError)
    'kinfed.errors:InputError'
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    try:
        found = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError):
        return None
    return f"{module}:{name}" if found is thing else None
