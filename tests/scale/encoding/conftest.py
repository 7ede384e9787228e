"""The pictures and the program of the command line's tests."""

from tests.commands.conftest import learned, model, photos, run

__all__ = ["learned", "model", "photos", "run"]
