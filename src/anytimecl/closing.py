"""Base of context managers with a `close`."""

from __future__ import annotations

from types import TracebackType
from typing import NoReturn, Self


class Closing:
    """Context manager that calls `close`; it can be neither copied nor pickled."""

    def close(self) -> None:
        """Release all resources."""
        raise NotImplementedError

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A {type(self).__name__} holds what is open in this process: it can be neither copied "
            "nor pickled. Open it again where it is needed."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
