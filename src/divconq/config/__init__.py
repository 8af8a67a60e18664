"""All settings of a training run: frozen, nested in sections, checked on construction."""

from divconq.checks import SettingError
from divconq.config.files import from_yaml, plain_settings, read_config, to_yaml, upgraded
from divconq.config.nested import BEST_BY, MAY_CHANGE, PLACES, Config, changes_on_resume, differences
from divconq.config.sections import (
    DataConfig,
    DivisionConfig,
    EvaluationConfig,
    LossConfig,
    MasksConfig,
    ModelConfig,
    OptimisationConfig,
    RuntimeConfig,
)

__all__ = [
    "Config",
    "DataConfig",
    "ModelConfig",
    "DivisionConfig",
    "MasksConfig",
    "LossConfig",
    "OptimisationConfig",
    "RuntimeConfig",
    "EvaluationConfig",
    "SettingError",
    "BEST_BY",
    "MAY_CHANGE",
    "PLACES",
    "changes_on_resume",
    "differences",
    "from_yaml",
    "read_config",
    "to_yaml",
    "plain_settings",
    "upgraded",
]
