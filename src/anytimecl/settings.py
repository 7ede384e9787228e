"""How a memory is learned from: written into it when it is made, and the same ever after."""

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
from anytimecl.experts.others import refuse_names
from anytimecl.registry import Choice, Named, Registry
from anytimecl.sampling import SAMPLERS, Sampler

Precision = Literal["auto", "float32", "bfloat16"]
PARTS: dict[str, Registry[Any]] = {"codec": CODECS, "sampler": SAMPLERS, "blend": BLENDS}
OWN_EXPERTS = ("tuned", "original", "gaussian", "instance")
_NUMBERS = ("lr", "eager", "weight_decay", "beta", "offline_lr", "offline_least_lr", "imprint")
RETIRED = ("recalled", "gated", "paired")  # blends whose memories go on with the pool


@dataclass(frozen=True)
class LearnerConfig:
    """The paper's settings for learning online, and offline from the whole memory.

    Parameters
    ----------
    batch
        Examples a step: the new one, and those from memory.
    lr
        Learning rate of AdamW online.
    eager
        A surprise of a new label is learned at up to (1 + eager) * lr; 0 in the paper.
    weight_decay
        Of AdamW.
    beta
        Weight of the second term of the loss, in which "other" is right.
    scale
        Of the cosines in the loss; None: the model's own, as in the paper.
    offline_batch
        Examples a step of `consolidate`.
    offline_lr
        At that batch; a smaller one takes proportionally less.
    offline_least_lr
        Where the cosine ends.
    imprint
        How far the mean image of a label moves the label vector of the tuned model, which is its
        text embedding alone at 0, as in the paper. Only where the last blocks alone are tuned, of a
        model with a prior.
    tune
        The last blocks, a classifier on top of the label texts, or both.
    precision
        Of a step's products; "auto": bfloat16 where that is faster.

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
    imprint: float = 0.0
    tune: Literal["block", "classifier", "both"] = "block"
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        """Refuse what cannot be learned with."""
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
        for item in ("eager", "imprint"):
            if getattr(self, item) < 0:
                raise ValueError(f"{item} is 0 or more, not {getattr(self, item)!r}.")


@dataclass(frozen=True)
class Settings:
    """Fixed when a memory is created, except for the blend and the learner's precision.

    Codec, sampler, blend and each expert are a name, {"name": ..., "options": {...}}, or an object.

    Parameters
    ----------
    codec
        How tokens are stored.
    sampler
        Which stored examples are replayed with a new one.
    blend
        How the experts are combined: "pool", or the paper's "ocw".
    eta
        Decay of the running accuracies, over about 1 / (1 - eta) examples of a label.
    seed
        Of every random draw.
    templates
        Prompts for labels; None: the model's own.
    learner
        How the tuned model learns.
    experts
        Experts of your own in the pool, besides the built-in ones.

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
        """Refuse, before a memory is made with it, what cannot be learned with."""
        for item, known in PARTS.items():
            object.__setattr__(self, item, _one_form(known, getattr(self, item)))
        experts = self.experts if isinstance(self.experts, list | tuple) else (self.experts,)
        object.__setattr__(self, "experts", tuple(_one_form(EXPERTS, each) for each in experts))
        refuse_names([EXPERTS.named(each).name for each in self.experts], OWN_EXPERTS)
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
        """As text, the same for equal settings.

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
            del plain["experts"]  # as before there were others
        return json.dumps(plain, sort_keys=True)

    def other_experts(self, dim: int, prior: Prior | None) -> dict[str, Expert]:
        """New ones, by name, for image vectors of that width.

        Parameters
        ----------
        dim
            Of image vectors.
        prior
            What is known of the model's image vectors beforehand.

        Returns
        -------
        dict of str to Expert
            Those that stand in the pool beside the library's own.
        """
        return {EXPERTS.named(each).name: EXPERTS.make(each, dim, prior) for each in self.experts}

    def name_of(self, item: str) -> str:
        """The name of a part, whatever its options.

        Parameters
        ----------
        item
            "codec", "sampler" or "blend".

        Returns
        -------
        str
            As it is registered.
        """
        return PARTS[item].named(getattr(self, item)).name

    @classmethod
    def from_json(cls, text: str, asked: Settings | None = None) -> Settings:
        """Back from `to_json`.

        Parameters
        ----------
        text
            From `to_json`.
        asked
            Settings that may hold the very objects that the text names.

        Returns
        -------
        Settings
            As they were.

        Raises
        ------
        StoreError
            The text is of another version, or names something that nobody has registered.
        """
        try:
            values = json.loads(text)
            if asked is not None:
                _take_objects(values, asked)
            # A memory that was made before there were these goes on as it began.
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
        """These settings, with the blend and the precision asked for; all else is fixed.

        Parameters
        ----------
        asked
            What a memory is opened with; None for nothing in particular.

        Returns
        -------
        Settings
            To open it with.

        Raises
        ------
        StoreError
            Something else than the blend and the precision differs.
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
    """A name where that says all, so that equal choices are equal."""
    named = known.named(choice)
    return named if named.options or named.given is not None else named.name


def _take_objects(values: dict[str, Any], asked: Settings) -> None:
    """Where the same is asked for, take what was given for it: it may be known by nobody else."""
    values["blend"] = asked.blend  # any may be asked for
    for item in ("codec", "sampler"):
        given = getattr(asked, item)
        if PARTS[item].named(given).plain() == values[item]:
            values[item] = given
    if [EXPERTS.named(each).plain() for each in asked.experts] == values.get("experts", []):
        values["experts"] = asked.experts
