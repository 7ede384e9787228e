"""Settings of a memory: stored in it when it is created, and fixed from then on."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from anytimecl.backbone.prior import Prior
from anytimecl.blend import BLENDS, ETA, POOL, Blend
from anytimecl.codec import CODECS, Codec
from anytimecl.codec import DEFAULT as DEFAULT_CODEC
from anytimecl.errors import PartError, StoreError
from anytimecl.experts import EXPERTS, Expert
from anytimecl.registry import Choice, Named, Registry
from anytimecl.sampling import SAMPLERS, Sampler

Precision = Literal["auto", "float32", "bfloat16"]
PARTS: dict[str, Registry[Any]] = {"codec": CODECS, "sampler": SAMPLERS, "blend": BLENDS}
OWN_EXPERTS = ("tuned", "original", "gaussian", "instance")
_NUMBERS = ("lr", "eager", "weight_decay", "beta", "offline_lr", "offline_least_lr", "imprint")
RETIRED = ("recalled", "gated", "paired")  # blends whose memories go on with the pool


@dataclass(frozen=True)
class LearnerConfig:
    """Hyperparameters of online learning, and of offline training over the whole memory.

    Parameters
    ----------
    batch
        Batch size of a step: the new example and replayed ones.
    lr
        Learning rate of AdamW online.
    eager
        A wrongly predicted example is learned at up to (1 + eager) * lr while its label has few
        examples; 0 in the paper.
    weight_decay
        Weight decay of AdamW.
    beta
        Weight of the second term of the loss, whose target is "other".
    scale
        Logit scale of the loss; None: the model's own, as in the paper.
    offline_batch
        Batch size of `consolidate`.
    offline_lr
        Learning rate at that batch size; scaled linearly for a smaller one.
    offline_least_lr
        Final learning rate of the cosine schedule.
    imprint
        Strength of weight imprinting: how far a label's mean image embedding moves its label vector
        in the tuned model; 0 (text embedding alone) in the paper. Needs `tune="block"` and a prior.
    tune
        What is trained: the tail's blocks, a classifier initialised with the text embeddings, or
        both.
    precision
        Precision of matrix products in a step; "auto": bfloat16 where that is faster.

    Examples
    --------
    >>> LearnerConfig(batch=16).batch
    16
    """

    batch: int = 32
    lr: float = 9.375e-6  # 6e-4 * 32 / 2048
    eager: float = 3.0
    weight_decay: float = 0.05
    beta: float = 0.1
    scale: float | None = 35.0
    offline_batch: int = 2048
    offline_lr: float = 6e-4
    offline_least_lr: float = 1e-6
    imprint: float = 1.0
    tune: Literal["block", "classifier", "both"] = "block"
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        """Validate."""
        if self.tune not in ("block", "classifier", "both"):
            raise ValueError(f'tune is "block", "classifier" or "both", not {self.tune!r}.')
        if self.precision not in get_args(Precision):
            known = ", ".join(f'"{name}"' for name in get_args(Precision))
            raise ValueError(f"precision is one of {known}, not {self.precision!r}.")
        for item in ("batch", "offline_batch"):
            object.__setattr__(self, item, _whole(item, getattr(self, item)))
        for item in _NUMBERS:
            object.__setattr__(self, item, _number(item, getattr(self, item)))
        if self.scale is not None:
            object.__setattr__(self, "scale", _number("scale", self.scale))
        self._refuse_negative("eager", "imprint")

    def check(self) -> None:
        """Raise ValueError for values that learn nothing, which older memories may hold."""
        self._refuse_negative(*_NUMBERS, "scale")

    def _refuse_negative(self, *items: str) -> None:
        for item in items:
            if (getattr(self, item) or 0) < 0:
                raise ValueError(f"{item} is 0 or more, not {getattr(self, item)!r}.")


@dataclass(frozen=True)
class Settings:
    """Settings of a memory; after creation, only blend and precision can be changed.

    Codec, sampler, blend and experts are a name, {"name": ..., "options": {...}} or an object.

    Parameters
    ----------
    codec
        How tokens are compressed.
    sampler
        How replayed examples are drawn.
    blend
        How the experts are combined: "pool", or the paper's "ocw".
    eta
        Decay of the running accuracies: averages over about 1 / (1 - eta) examples of a label.
    seed
        Seed of every random draw.
    templates
        Prompt templates for labels; None: the model's own.
    learner
        How the tuned model learns.
    experts
        Custom experts in the pool, besides the built-in ones.

    Examples
    --------
    >>> Settings.from_json(Settings(seed=3).to_json()).seed
    3
    >>> Settings(sampler={"name": "frequency_weighted", "options": {"xi": 0.9}}).sampler
    Named(name='frequency_weighted', options={'xi': 0.9})
    """

    codec: Choice[Codec] = DEFAULT_CODEC
    sampler: Choice[Sampler] = "class_balanced"
    blend: Choice[Blend] = POOL
    eta: float = ETA
    seed: int = 0
    templates: tuple[str, ...] | None = None
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    experts: tuple[Choice[Expert], ...] = ()

    def __post_init__(self) -> None:
        """Validate, before a memory is created."""
        for item, known in PARTS.items():
            object.__setattr__(self, item, _one_form(known, getattr(self, item)))
        experts = self.experts if isinstance(self.experts, list | tuple) else (self.experts,)
        object.__setattr__(self, "experts", tuple(_one_form(EXPERTS, each) for each in experts))
        names = [*OWN_EXPERTS, *(EXPERTS.named(each).name for each in self.experts)]
        for at, name in enumerate(names):
            if name in names[:at]:
                raise PartError(f"There is an expert {name!r} already: each has a name of its own.")
        if not isinstance(self.learner, LearnerConfig):
            raise ValueError(f"learner is LearnerConfig(...), not {self.learner!r}.")
        if not 0 < _number("eta", self.eta) < 1:
            raise ValueError(f"eta lies between 0 and 1, and is not {self.eta!r}.")
        if isinstance(self.seed, numbers.Integral):  # of NumPy, which JSON does not take
            object.__setattr__(self, "seed", int(self.seed))
        if self.templates is not None:
            if isinstance(self.templates, str):
                raise ValueError(f"templates are a list of texts, not {self.templates!r}.")
            object.__setattr__(self, "templates", tuple(self.templates))

    def to_json(self) -> str:
        """Serialise; equal settings give equal text.

        Returns
        -------
        str
            JSON.
        """
        plain = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        plain["learner"] = dataclasses.asdict(self.learner)
        for item, known in PARTS.items():
            plain[item] = known.named(plain[item]).plain()
        plain["experts"] = [EXPERTS.named(each).plain() for each in self.experts]
        if not self.experts:
            del plain["experts"]  # as older versions wrote it
        return json.dumps(plain, sort_keys=True)

    def other_experts(self, dim: int, prior: Prior | None) -> dict[str, Expert]:
        """Construct the custom experts.

        Parameters
        ----------
        dim
            Width of image embeddings.
        prior
            Prior of the model's image embeddings.

        Returns
        -------
        dict of str to Expert
            Custom experts by name.
        """
        return {EXPERTS.named(each).name: EXPERTS.make(each, dim, prior) for each in self.experts}

    def name_of(self, item: str) -> str:
        """The name of a component, without its options.

        Parameters
        ----------
        item
            "codec", "sampler" or "blend".

        Returns
        -------
        str
            Its registered name.
        """
        return PARTS[item].named(getattr(self, item)).name

    @classmethod
    def from_json(cls, text: str, asked: Settings | None = None) -> Settings:
        """Parse the result of `to_json`.

        Parameters
        ----------
        text
            From `to_json`.
        asked
            Settings with objects for components that the text names, if they are not registered.

        Returns
        -------
        Settings
            The settings.

        Raises
        ------
        StoreError
            The text is of another version, or names a component that is not registered.
        """
        try:
            values = json.loads(text)
            if asked is not None:
                _take_objects(values, asked)
            # Memories older than these settings keep their behaviour.
            before = {"eager": 0.0, "imprint": 0.0}
            values["learner"] = LearnerConfig(**before | values["learner"])
            if values["blend"] in RETIRED:
                values["blend"] = POOL
            if values["templates"] is not None:
                values["templates"] = tuple(values["templates"])
            return cls(**values)
        except PartError as error:
            raise StoreError(
                "This memory needs code that is not here, yours or that of another version. "
                f"{error} Or open it with settings that hold the object."
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"This memory was made by another version of anytimecl: {error}."
            ) from error

    def agreed(self, asked: Settings | None) -> Settings:
        """These settings, with the blend and precision of `asked`.

        Parameters
        ----------
        asked
            Settings given when opening the memory; None for its own.

        Returns
        -------
        Settings
            Settings to open it with.

        Raises
        ------
        StoreError
            Something other than blend and precision differs.
        """
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


def _whole(item: str, value: Any) -> int:
    if not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{item} is a whole number from 1, not {value!r}.")
    return int(value)


def _number(item: str, value: Any) -> float:
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{item} is a number, not {value!r}.")
    return value if isinstance(value, int | float) else float(value)  # JSON takes none of NumPy's


def _one_form(known: Registry[Any], choice: Choice[Any]) -> str | Named:
    """The name alone if there are no options or object, so that equal choices compare equal."""
    named = known.named(choice)
    return named if named.options or named.given is not None else named.name


def _take_objects(values: dict[str, Any], asked: Settings) -> None:
    """Use the objects in `asked` for components of the same name, which may not be registered."""
    values["blend"] = asked.blend  # may differ
    for item in ("codec", "sampler"):
        given = getattr(asked, item)
        if PARTS[item].named(given).plain() == values[item]:
            values[item] = given
    if [EXPERTS.named(each).plain() for each in asked.experts] == values.get("experts", []):
        values["experts"] = asked.experts
