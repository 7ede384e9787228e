"""Error messages about images."""

from __future__ import annotations


class Refusal(Exception):
    """Why an image is refused, with advice; callers add its name."""


def reason(error: Exception) -> str:
    """The message of an error, in one line."""
    if isinstance(error, Refusal):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "there is no such file; check the path"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}; check the path and its permissions"
    if isinstance(error, ValueError) and "closed" in str(error):  # a file's word, and Pillow's
        return "it was closed before it was read; open it again"
    detail = " ".join(str(error).split()) or type(error).__name__  # one line, for reports
    return f"it is broken or cut short ({detail}); export or download it again"
