"""archlab: a laboratory for the architecture of language models.

Every public name is imported on first use, so that `import archlab` is fast and does not load torch.
"""

from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING

from archlab.version import __version__

if TYPE_CHECKING:
    import archlab.testing as testing  # noqa: F401  (a module, not a name for `import *`)
    from archlab.atlas.list_presets import list_presets
    from archlab.config.components.activation import Activation
    from archlab.config.components.component import MLP, Attention, Component, Mixer, StateTensor
    from archlab.config.components.multi_head import MultiHead
    from archlab.config.components.norm import Norm
    from archlab.config.components.position import Position
    from archlab.config.core.registry import implements
    from archlab.config.objective import Objective
    from archlab.config.optimizer import Optimizer, Schedule
    from archlab.config.register import Options, register_mixer, register_mlp, register_optimizer
    from archlab.config.tasks import Task
    from archlab.config.tasks.transduction import Transduction
    from archlab.data.prepare_data import prepare_data
    from archlab.evidence.ledger import ledger
    from archlab.evidence.studies import list_studies
    from archlab.evidence.study_plan import plan_study
    from archlab.exchange.configs import load_config
    from archlab.exchange.diff import diff
    from archlab.exchange.save import save_pretrained
    from archlab.families.registry import list_families
    from archlab.flatten.write import flatten_model
    from archlab.infer.beams import beam_search
    from archlab.infer.convert import convert
    from archlab.infer.evaluate import evaluate
    from archlab.infer.fill import fill
    from archlab.infer.generate import generate
    from archlab.infer.import_export import import_model
    from archlab.infer.inspect import inspect
    from archlab.infer.load import from_pretrained, load_tokenizer
    from archlab.infer.session import Session, left_pad
    from archlab.infer.tasks import lm_eval
    from archlab.measuring.coordinates import coordinate_check
    from archlab.measuring.measure import measure_hardware
    from archlab.measuring.probe import probe
    from archlab.measuring.speed import decoding_speed, profile, training_speed
    from archlab.model.attention import MultiHeadAttention
    from archlab.model.decoder import Decoder
    from archlab.model.projection import Projection
    from archlab.pricing.hardware import list_hardware, load_hardware
    from archlab.report.check import check
    from archlab.report.cost.answer import cost
    from archlab.report.drawings.figure import draw
    from archlab.report.explain import explain
    from archlab.report.run.watched import load_run
    from archlab.report.study.run_study import run_study
    from archlab.sizing.propose import propose
    from archlab.study.outcomes.schema import Outcome, register_outcome
    from archlab.study.summary_file import load_study
    from archlab.training.callback import Callback
    from archlab.training.train import train
    from archlab.transplant.catalog import list_transformations


__all__ = [
    "MLP",
    "Activation",
    "Attention",
    "Callback",
    "Component",
    "Decoder",
    "Mixer",
    "MultiHead",
    "MultiHeadAttention",
    "Norm",
    "Objective",
    "Optimizer",
    "Options",
    "Outcome",
    "Position",
    "Projection",
    "Schedule",
    "Session",
    "StateTensor",
    "Task",
    "Transduction",
    "__version__",
    "beam_search",
    "check",
    "convert",
    "coordinate_check",
    "cost",
    "decoding_speed",
    "diff",
    "draw",
    "evaluate",
    "explain",
    "fill",
    "flatten_model",
    "from_pretrained",
    "generate",
    "implements",
    "import_model",
    "inspect",
    "ledger",
    "left_pad",
    "list_families",
    "list_hardware",
    "list_presets",
    "list_studies",
    "list_transformations",
    "lm_eval",
    "load_config",
    "load_hardware",
    "load_run",
    "load_study",
    "load_tokenizer",
    "measure_hardware",
    "plan_study",
    "prepare_data",
    "probe",
    "profile",
    "propose",
    "register_mixer",
    "register_mlp",
    "register_optimizer",
    "register_outcome",
    "run_study",
    "save_pretrained",
    "train",
    "training_speed",
]

_HOME = {
    "Activation": "archlab.config.components.activation",
    "Attention": "archlab.config.components.component",
    "Callback": "archlab.training.callback",
    "Component": "archlab.config.components.component",
    "Decoder": "archlab.model.decoder",
    "MLP": "archlab.config.components.component",
    "Mixer": "archlab.config.components.component",
    "MultiHead": "archlab.config.components.multi_head",
    "MultiHeadAttention": "archlab.model.attention",
    "Norm": "archlab.config.components.norm",
    "Objective": "archlab.config.objective",
    "Optimizer": "archlab.config.optimizer",
    "Options": "archlab.config.register",
    "Outcome": "archlab.study.outcomes.schema",
    "Position": "archlab.config.components.position",
    "Projection": "archlab.model.projection",
    "Schedule": "archlab.config.optimizer",
    "Session": "archlab.infer.session",
    "StateTensor": "archlab.config.components.component",
    "Task": "archlab.config.tasks",
    "Transduction": "archlab.config.tasks.transduction",
    "beam_search": "archlab.infer.beams",
    "check": "archlab.report.check",
    "convert": "archlab.infer.convert",
    "coordinate_check": "archlab.measuring.coordinates",
    "cost": "archlab.report.cost.answer",
    "decoding_speed": "archlab.measuring.speed",
    "diff": "archlab.exchange.diff",
    "draw": "archlab.report.drawings.figure",
    "evaluate": "archlab.infer.evaluate",
    "explain": "archlab.report.explain",
    "fill": "archlab.infer.fill",
    "flatten_model": "archlab.flatten.write",
    "from_pretrained": "archlab.infer.load",
    "generate": "archlab.infer.generate",
    "implements": "archlab.config.core.registry",
    "import_model": "archlab.infer.import_export",
    "inspect": "archlab.infer.inspect",
    "ledger": "archlab.evidence.ledger",
    "left_pad": "archlab.infer.session",
    "list_families": "archlab.families.registry",
    "list_hardware": "archlab.pricing.hardware",
    "list_presets": "archlab.atlas.list_presets",
    "list_studies": "archlab.evidence.studies",
    "list_transformations": "archlab.transplant.catalog",
    "lm_eval": "archlab.infer.tasks",
    "load_config": "archlab.exchange.configs",
    "load_hardware": "archlab.pricing.hardware",
    "load_run": "archlab.report.run.watched",
    "load_study": "archlab.study.summary_file",
    "load_tokenizer": "archlab.infer.load",
    "measure_hardware": "archlab.measuring.measure",
    "plan_study": "archlab.evidence.study_plan",
    "prepare_data": "archlab.data.prepare_data",
    "probe": "archlab.measuring.probe",
    "profile": "archlab.measuring.speed",
    "propose": "archlab.sizing.propose",
    "register_mixer": "archlab.config.register",
    "register_mlp": "archlab.config.register",
    "register_optimizer": "archlab.config.register",
    "register_outcome": "archlab.study.outcomes.schema",
    "run_study": "archlab.report.study.run_study",
    "save_pretrained": "archlab.exchange.save",
    "train": "archlab.training.train",
    "training_speed": "archlab.measuring.speed",
}
"""Defining module by public name."""


if not TYPE_CHECKING:  # a type checker finds misspelled names, because it sees the imports above only

    def __getattr__(name):
        if name == "testing":
            return import_module("archlab.testing")
        if name not in _HOME:
            raise AttributeError(f"module 'archlab' has no attribute {name!r}")
        value = getattr(import_module(_HOME[name]), name)
        if isinstance(value, FunctionType):
            value = import_module("archlab.calls").checked(value, __name__)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "testing"])
