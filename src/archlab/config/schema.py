"""Config of a run: the model, its training and its data."""

import pickle
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from archlab.config.core.base import (
    DERIVED,
    Count,
    Derived,
    Index,
    Length,
    Natural,
    NonNegative,
    Positive,
    Probability,
    Seed,
    Settings,
    Share,
    Tokens,
)
from archlab.config.core.plugins import PlugIns, import_plugins
from archlab.config.core.trust import accept
from archlab.config.lora import Lora
from archlab.config.model_schema import ModelConfig
from archlab.config.objective import NextToken, Objective
from archlab.config.optimizer import AdamW, LrMultipliers, Optimizer, ScheduleName
from archlab.config.parallel import ParallelConfig
from archlab.config.reserve import Reserve
from archlab.config.tasks import NoTask, TaskOrText
from archlab.config.teacher import TeacherConfig
from archlab.displayed import Displayed


class Keep(Settings):
    """Rules for which checkpoints stay on disk during a run."""

    last: Annotated[int, Field(ge=1)] = 2
    """Number of newest checkpoints that are kept. If the newest file is damaged, archlab uses the one before it."""
    every: Count | None = None
    """Interval in steps between checkpoints that are never deleted: those at multiples of this number. null: none.

    A finished run always keeps its last weights. With the schedules constant and wsd, it also keeps the checkpoint from
    which a longer run can start.
    """


class Spikes(Settings):
    """Handling of spikes, steps whose loss or gradient is far above those of the steps before."""

    deviations: Positive = 6.0
    """Threshold of a spike, in standard deviations above the mean of the window."""
    window: Annotated[int, Field(ge=2)] = 100
    """Number of previous steps from which the mean and the standard deviation are computed. The first steps of a run,
    up to this number, never count as spikes."""
    action: Literal["note", "skip", "rewind"] = "note"
    """Reaction to a spike. `note`: only log the spike. `skip`: make no update from that batch. `rewind`: return to
    the newest checkpoint, and continue with the text after the spike (PaLM, Chowdhery 2022). Without a checkpoint,
    or after five rewinds, `rewind` acts like `skip`."""


LogTo = Literal["tensorboard", "wandb", "trackio", "mlflow"]
"""Services that metrics can be copied to. Each service needs archlab's extra of the same name."""


def _each_once(names: tuple[LogTo, ...]) -> tuple[LogTo, ...]:
    if repeated := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ValueError(f"names {repeated[0]} twice; name each service once")
    return names


class TrainConfig(Displayed, Settings):
    """Settings of training. A step is one optimizer update."""

    start: str | None = None
    """Trained weights from which training begins: those of a run folder (its last checkpoint), a Hugging Face folder or
    a hub id. Fields of `model` that differ from theirs change the weights (docs/trained_weights.md). The optimizer
    has no state at first. null: random weights."""
    start_layers: Annotated[tuple[Index, ...], Field(strict=False)] | Literal["similar"] | None = None
    """Layer of the trained weights that each layer of the model begins from, as in `[0, 1, 4, 5]`. `similar`: the block
    of layers that changes the hidden states least is left out (Gromov 2024). null: the same layers. If the model has
    more layers, those between them add nothing at first."""
    tokens: Derived[Tokens] = DERIVED
    """Number of training tokens. A run has tokens // batch_tokens steps. null: one million, or one batch if a batch is
    larger."""
    batch_tokens: Derived[Length] = DERIVED
    """Number of tokens per step. null: at least 8192 tokens, in as few whole sequences as possible."""
    micro_batch_tokens: Derived[Length] = DERIVED
    """Number of tokens per forward and backward pass. Gradients accumulate until batch_tokens are reached. null: the
    whole batch at once.

    Each pass balances the load of its experts separately, so this setting changes the objective if mlp.balance.loss is
    set.
    """
    seq_len: Derived[Length] = DERIVED
    """Number of tokens per training window. null: model.max_seq_len."""
    document_mask: bool = False
    """Whether documents in one window are hidden from each other, with positions that restart at each document.
    Evaluation uses the same setting."""
    lr: Positive = 1e-3
    """Peak learning rate."""
    warmup: Annotated[int, Field(ge=0)] | Share = 0.02
    """Length of the linear warm-up: a whole number of steps, or a fraction below 1 of all steps."""
    schedule: ScheduleName = "cosine"
    """Shape of the learning rate after the warm-up: cosine, linear, constant, or wsd, which holds the peak and then
    decays linearly."""
    final_lr: Derived[Annotated[float, Field(ge=0, le=1)]] = DERIVED
    """Learning rate at the end, as a fraction of the peak. null: 0.1, or 1 for the schedule constant."""
    decay: Derived[Share] = DERIVED
    """Fraction of the steps after the warm-up in which the schedule wsd decays. null: 0.2 for wsd, and 0 for other
    schedules."""
    lora: Lora | None = None
    """Low-rank adaptation of trained weights (LoRA): only small added matrices are trained. null: all parameters are
    trained."""
    optimizer: Optimizer = AdamW()
    """Optimizer that turns gradients into updates: AdamW, Muon, or one from a plug-in."""
    lr_multipliers: LrMultipliers = LrMultipliers()
    """Factors on the learning rate, by role of a parameter."""
    weight_decay: NonNegative = 0.1
    """Coefficient of the decoupled weight decay of matrices and convolutions (Loshchilov 2019). Norms and biases never
    decay."""
    decay_embeddings: bool = False
    """Whether weight decay also applies to tables: token and position embeddings, tables of distances for the
    scores, and the head."""
    betas: Annotated[tuple[Probability, Probability], Field(strict=False)] = (0.9, 0.95)
    """Decay rates (beta1, beta2) of AdamW's moving averages. Muon passes them to AdamW for all parameters that are
    not matrices."""
    eps: Positive = 1e-8
    """Epsilon of AdamW. Muon passes it to AdamW for all parameters that are not matrices."""
    grad_clip: Positive | None = 1.0
    """Largest allowed norm of all gradients together; larger gradients are scaled down to this norm. null: no
    clipping."""
    spikes: Spikes = Spikes()
    """Handling of spikes of the loss or the gradient."""
    objective: Objective = NextToken()
    """Objective that training minimizes: which tokens are predicted, and from which. The reported loss is always the
    plain cross-entropy of these tokens."""
    teacher: TeacherConfig | None = None
    """Trained model from whose predictions and hidden states the run also learns (distillation). null: no teacher."""
    z_loss: NonNegative = 0.0
    """Coefficient of the z-loss log^2 Z, where Z is the softmax denominator of the logits (PaLM: 1e-4). The reported
    loss excludes the z-loss. A teacher does not change its weight: like the cross-entropy, the divergence
    stays the same if a number is added to all logits, so only the z-loss keeps them small."""
    seed: Seed = 0
    """Random seed of initial weights, data order and dropout."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of matrix products. Weights stay in float32. `auto`: bfloat16 if the processor multiplies it faster than
    float32, otherwise float32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device on which training runs. `auto`: cuda if available, otherwise cpu."""
    compile: Literal["auto"] | bool = "auto"
    """Whether torch.compile compiles the layers. `auto`: they are compiled if the run is long enough to gain from it
    and a C++ compiler is available."""
    eval_every: Derived[Count] = DERIVED
    """Number of steps between evaluations on held-out data. null: a tenth of the run."""
    eval_tokens: Length = 65536
    """Number of held-out tokens per evaluation. Every evaluation uses the same tokens."""
    eval_seq_len: Derived[Length] = DERIVED
    """Number of tokens per evaluation window. null: the same as seq_len."""
    checkpoint_every: Derived[Count] = DERIVED
    """Number of steps between checkpoints. null: the same as eval_every."""
    keep: Keep = Keep()
    """Rules for which checkpoints stay on disk."""
    recompute: bool = False
    """Whether training stores only the input of each layer, and computes the other activations again in the backward
    pass (activation checkpointing, Chen 2016). A step then needs less memory and a third more time."""
    deterministic: bool = False
    """Whether a GPU uses only deterministic algorithms, so that training again gives the same bits. They are slower,
    and torch refuses operations that have none. A CPU is always deterministic."""
    probe_every: Count | None = None
    """Number of steps between probes of gradients, activations and attention. Their results are written to
    metrics.jsonl. null: no probes."""
    log: Annotated[tuple[LogTo, ...], Field(strict=False), AfterValidator(_each_once)] = ()
    """Services that get a copy of the metrics in metrics.jsonl. Each service needs archlab's extra of the same name,
    as in `pip install 'archlab[wandb]'`."""

    @property
    def steps(self) -> int:
        return self.tokens // self.batch_tokens

    @property
    def trained(self) -> int:
        """Number of tokens that the run trains on, in whole batches."""
        return self.steps * self.batch_tokens

    @property
    def rows(self) -> int:
        return self.batch_tokens // self.seq_len


class MixtureSource(Settings):
    """One source in a mixture of training data."""

    path: str
    """Folder made by `archlab data`. All sources must be made with the same --tokenizer."""
    weight: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    """Weight of this source. The source fills weight / (sum of all weights) of the training windows."""


def _no_mixture(value: Any) -> Any:
    return {} if value is None else value


_Sources = dict[str, MixtureSource]
_Mixture = Annotated[_Sources, BeforeValidator(_no_mixture, json_schema_input_type=_Sources | None)]


def _as_names(value: Any) -> Any:
    return [str(field) if isinstance(field, int) else field for field in value] if isinstance(value, list) else value


def _two_fields(fields: tuple[str, str]) -> tuple[str, str]:
    source, target = fields
    if not source or not target or source == target:
        raise ValueError(f"{source!r} and {target!r}; allowed: two different fields")
    if source.isdecimal() != target.isdecimal():
        raise ValueError(f"{source} and {target}; allowed: two names, or two numbers of the columns of a .tsv file")
    return fields


_Pairs = Annotated[tuple[str, str], Field(strict=False), BeforeValidator(_as_names), AfterValidator(_two_fields)]


STDLIB = "python-stdlib"
"""Name of the text that every machine has: the source code of the running Python's standard library."""

DOCS = "python-docs"
"""Name of the English text that every machine has: the prose in the docstrings of packages that archlab requires."""

INSTALLED_TEXTS = (STDLIB, DOCS)


class DataConfig(Displayed, Settings):
    """Data that the model is trained on."""

    path: str = STDLIB
    """Training data: a folder made by `archlab data`, or text files that training prepares itself. python-stdlib is the
    source code of the running Python's standard library. python-docs is English text from the documentation of Python
    packages."""
    mixture: _Mixture = Field(default_factory=dict)
    """Sources that together replace `path`, by name. Each source fills its fraction of the training windows. null:
    no mixture."""
    held_out: Probability = 0.05
    """Fraction of the text in one fold. Whole files are assigned to folds by the hash of their name. The setting has
    an effect only if training prepares the text itself."""
    reserve: Reserve = ()
    """Special tokens that an objective needs, at the end of the vocabulary: `mask`, `sentinels:100` for 100 sentinels,
    or `mode:R` for the mode token [R]. The setting has an effect only if training prepares the text itself, or
    if `task` is set. For a folder, use `archlab data --reserve`."""
    pairs: _Pairs | None = None
    """Two fields of the records of `path`, which contain a source and its target, as in `[en, de]`. In a .tsv file
    without a line of names, they are numbers of columns, as in `[1, 2]`. null: the data consists of plain text. The
    setting has an effect only if training prepares the text itself. For a folder, use `archlab data --pairs`."""
    fold: Natural = 0
    """Index of the fold that is held out for evaluation. Training uses the other folds, except `excluded_folds`."""
    excluded_folds: Annotated[tuple[Natural, ...], Field(strict=False)] = ()
    """Indices of further folds that training does not read, so that later runs that begin from these weights can be
    evaluated on them. The windows of a task are drawn again for each fold, so there the setting has no effect."""
    tokenizer: str | None = None
    """Tokenizer of the text: a tokenizer.json, or a folder or hub id with one. A folder made by `archlab data` must
    have the same tokenizer. null: the tokenizer of `train.start`, or, without it, one that is learned from the text."""
    task: TaskOrText = NoTask()
    """Synthetic task whose windows replace text. The task uses the whole vocabulary except reserved tokens; path
    and held_out have no effect."""

    @property
    def unread_folds(self) -> tuple[int, ...]:
        """Folds that training does not read."""
        return self.fold, *self.excluded_folds

    @property
    def field(self) -> str:
        """Name of the field that says which data is read."""
        return "data.mixture" if self.mixture else "data.path"

    @property
    def named(self) -> str:
        """Name of the data for messages."""
        return self.field if self.mixture else self.path


class Config(Displayed, Settings):
    """Config of a run: everything that determines the run."""

    plugins: PlugIns = ()
    """Your own modules, or files that end in .py, which register your own kinds."""
    model: ModelConfig
    """Architecture of the model."""
    train: TrainConfig = TrainConfig()
    """Optimizer, schedule and budget of training."""
    data: DataConfig = DataConfig()
    """Data that the model is trained on: text or a synthetic task."""
    parallel: ParallelConfig = ParallelConfig()
    """Division of the training run among the processes that torchrun starts."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a recipe for pickle that imports the plug-ins first, because the values may be instances of the
        plug-ins' classes."""
        return _unpickled, (type(self), self.plugins, pickle.dumps(self.__getstate__()))


def _unpickled(schema: type[Config], plugins: tuple[str, ...], state: bytes) -> Config:
    """Return the unpickled config. The process that pickled the config has already checked its plug-ins."""
    accept(*plugins)
    import_plugins(plugins)
    config = schema.__new__(schema)
    config.__setstate__(pickle.loads(state))
    return config
