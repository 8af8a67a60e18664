"""`Config`: all settings of a training run, in frozen sections."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from divconq.checks import (
    SettingError,
    check_batch,
    check_class_sampling,
    check_disjoint_masks,
    did_you_mean,
)
from divconq.config.sections import (
    DataConfig,
    DivisionConfig,
    EvaluationConfig,
    LossConfig,
    MasksConfig,
    ModelConfig,
    OptimisationConfig,
    RuntimeConfig,
    checked,
    setting_name,
)
from divconq.masks import MASKS

# Score that selects the best epoch. On few held-out images R@1 is noisy; MAP@R uses all images of a class.
BEST_BY = {"held_out": "val_map@r", "test": "recall@1"}
# Settings that may change on --resume, and the effect of each.
MAY_CHANGE = {
    **dict.fromkeys(
        ("data", "root", "import_file", "pretrained", "backbone_weights"), "the result stays the same"
    ),
    **dict.fromkeys(
        ("cache", "workers", "save_minutes", "save_steps", "train_recall"), "the result stays the same"
    ),
    **dict.fromkeys(("device", "precision", "compile"), "the result changes by rounding only"),
    **dict.fromkeys(("epochs", "eval_every"), "every epoch is trained as before"),
}


@dataclass(frozen=True)
class Config:
    """All settings of a training run.

    Each setting also has one flat name. It is the flag, the name in tables and the name in result files.

    >>> config = Config.of(k_max=8, loss="triplet")
    >>> config.division.k_max, config.loss.name
    (8, 'triplet')
    """

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    division: DivisionConfig = field(default_factory=DivisionConfig)
    masks: MasksConfig = field(default_factory=MasksConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimisation: OptimisationConfig = field(default_factory=OptimisationConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    @classmethod
    def of(cls, **settings: object) -> "Config":
        """Return the default config with some settings changed, by their flat names.

        >>> Config.of(kmax=8)
        Traceback (most recent call last):
        ValueError: unknown setting 'kmax'; did you mean 'k_max'?
        """
        return cls().replace(**settings)

    def replace(self, **settings: object) -> "Config":
        """Return a copy with some settings changed, by their flat names.

        >>> Config().replace(k_max=8, seed=1).optimisation.seed
        1
        """
        changes: dict[str, dict[str, Any]] = {}
        for name, value in settings.items():
            if name not in PLACES:
                hint = did_you_mean(name, PLACES) or "; divconq train --help lists all of them"
                raise ValueError(f"unknown setting {name!r}{hint}")
            section, item = PLACES[name]
            changes.setdefault(section, {})[item.name] = checked(item, value)
        return dataclasses.replace(
            self,
            **{name: dataclasses.replace(getattr(self, name), **values) for name, values in changes.items()},
        )

    def settings(self) -> dict[str, Any]:
        """Return all settings by their flat names, in the order of their declaration.

        >>> Config().settings()["k_max"]
        4
        """
        return {name: getattr(getattr(self, section), item.name) for name, (section, item) in PLACES.items()}

    @property
    def max_clusters(self) -> int:
        """Return the largest number of clusters of the data: ``k_max``, or 1 with the head ``clml``.

        >>> Config.of(k_max=8).max_clusters, Config.of(k_max=8, head="clml").max_clusters
        (8, 1)
        """
        return 1 if self.model.head == "clml" else self.division.k_max

    @property
    def components(self) -> int:
        """Return the number of linear layers in the head: 1, or ``k_max`` with the head ``clml``.

        >>> Config.of(k_max=8).components, Config.of(k_max=8, head="clml").components
        (1, 8)
        """
        return self.division.k_max if self.model.head == "clml" else 1

    @property
    def best_by(self) -> str:
        """Return the name of the score that selects the best epoch.

        >>> Config.of(data="cub", val_classes=10).best_by
        'val_map@r'
        """
        return BEST_BY["held_out" if self.data.val_classes else "test"]

    def __post_init__(self) -> None:
        for name, kind in SECTIONS.items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise SettingError(
                    f"the section {name} must be a {kind.__name__}, got {value!r}; "
                    "to change settings by their names, use Config.of(...)"
                )
        data = self.data
        if data.val_groups and not data.val_classes:
            raise SettingError(
                "val_groups needs a number of classes to hold out: val_classes must be at least 1, got 0; "
                "use for example --val-classes 10"
            )
        if data.resize < data.image_size:
            raise SettingError(
                f"resize must be at least image_size = {data.image_size}, got {data.resize}; raise --resize or lower "
                "--image-size"
            )
        if data.decoded < data.resize:
            raise SettingError(
                f"decode_size must be at least resize = {data.resize}, got {data.decode_size}; raise --decode-size, or "
                "leave it out to decode at the size of --resize"
            )
        if MASKS[self.masks.kind].disjoint:
            check_disjoint_masks(self.masks.kind, self.model.dim, self.max_clusters)
        check_batch(self.optimisation.batch, self.optimisation.per_class)
        check_class_sampling(self.optimisation.class_sampling, self.optimisation.per_class)
        if self.optimisation.warmup_epochs >= self.optimisation.epochs:
            raise SettingError(
                f"warmup_epochs must be below epochs = {self.optimisation.epochs}, got "
                f"{self.optimisation.warmup_epochs}; lower --warmup-epochs or raise --epochs"
            )


SECTIONS: dict[str, type[Any]] = {
    item.name: item.type for item in dataclasses.fields(Config) if isinstance(item.type, type)
}
# The section and the field of each setting, by its flat name.
PLACES = {
    setting_name(item): (section, item)
    for section, kind in SECTIONS.items()
    for item in dataclasses.fields(kind)
}


def changes_on_resume(config: Config) -> dict[str, str]:
    """Return the settings that may change when a run is resumed, and the effect of each.

    The length of a cosine depends on ``epochs``, which then may not change.

    >>> "epochs" in changes_on_resume(Config()), "epochs" in changes_on_resume(Config.of(schedule="cosine"))
    (True, False)
    """
    fixed = ("epochs",) if config.optimisation.schedule == "cosine" else ()
    return {name: effect for name, effect in MAY_CHANGE.items() if name not in fixed}


def differences(config: Config, other: Config) -> dict[str, tuple[object, object]]:
    """Return the settings that differ between two configs, each with both values.

    >>> differences(Config.of(k_max=4), Config.of(k_max=8))
    {'k_max': (4, 8)}
    """
    others = other.settings()
    return {name: (value, others[name]) for name, value in config.settings().items() if value != others[name]}
