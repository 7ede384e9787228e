"""How a memory is learned from: written into it when it is made, and the same ever after."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field

from anytimecl.blend import BLENDS, ETA
from anytimecl.codec import CODECS
from anytimecl.codec import DEFAULT as DEFAULT_CODEC
from anytimecl.errors import StoreError
from anytimecl.learner import LearnerConfig
from anytimecl.sampling import SAMPLERS


@dataclass(frozen=True)
class Settings:
    """Fixed when a memory is created, except for the blend and the learner's precision.

    >>> Settings.from_json(Settings(seed=3).to_json()).seed
    3
    """

    codec: str = DEFAULT_CODEC
    sampler: str = "class_balanced"
    blend: str = "recalled"
    eta: float = ETA
    seed: int = 0
    templates: tuple[str, ...] | None = None  # prompts for labels; None: the model's own
    learner: LearnerConfig = field(default_factory=LearnerConfig)

    def __post_init__(self) -> None:
        """Refuse, before a memory is made with it, what cannot be learned with."""
        for item, there in (("codec", CODECS), ("sampler", SAMPLERS), ("blend", BLENDS)):
            if getattr(self, item) not in there:
                raise ValueError(
                    f"There is no {item} {getattr(self, item)!r}. There are: {', '.join(there)}."
                )
        if not 0 < self.eta < 1:
            raise ValueError(f"eta lies between 0 and 1, and is not {self.eta!r}.")
        if self.templates is not None:
            object.__setattr__(self, "templates", tuple(self.templates))

    def to_json(self) -> str:
        """As text, the same for equal settings."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Back from `to_json`."""
        try:
            values = json.loads(text)
            # A memory that was made before surprises were learned eagerly goes on as it began.
            values["learner"] = LearnerConfig(**{"eager": 0.0} | values["learner"])
            if values["templates"] is not None:
                values["templates"] = tuple(values["templates"])
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"This memory was made by another version of anytimecl: {error}."
            ) from error

    def agreed(self, asked: Settings | None) -> Settings:
        """These settings, with the blend and the precision asked for; all else is fixed."""
        if asked is None:
            return self
        learner = dataclasses.replace(self.learner, precision=asked.learner.precision)
        mine = dataclasses.replace(self, learner=learner)
        for item in dataclasses.fields(Settings):
            was, now = getattr(mine, item.name), getattr(asked, item.name)
            if was != now and item.name != "blend":
                raise StoreError(
                    f"This memory was made with {item.name}={was!r}, not {now!r}. Open it without "
                    "settings, or start another memory."
                )
        return asked
