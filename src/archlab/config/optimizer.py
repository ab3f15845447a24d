"""How the weights are updated: the optimizer, the schedule of its learning rate, and what it minimizes."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archlab.config.core.base import Positive, Probability, Settings
from archlab.config.core.registry import KindName, Named, Registered, Section


class Optimizer(Registered):
    """Base class of the optimizers."""

    section: ClassVar[Section] = "optimizer"
    default_kind: ClassVar[str | None] = "adamw"


class AdamW(Optimizer):
    """AdamW (Loshchilov 2019). Its settings are train.betas, train.eps and train.weight_decay."""

    kind: Literal["adamw"] = "adamw"


class Muon(Optimizer):
    """Matrices by their orthogonalised momentum (Jordan 2024), all other parameters by AdamW.

    Matrices are those of the roles input, narrow and output; each expert's is one by itself. Tables (embedding, head),
    convolutions, norms and biases are AdamW's, at train.betas and train.eps.
    """

    kind: Literal["muon"] = "muon"
    momentum: Probability = 0.95
    """Share of the earlier gradients' mean that stays in it at each update."""
    nesterov: bool = True
    """Orthogonalise the mean with the new gradient mixed in once more, as Nesterov looks ahead."""
    steps: Annotated[int, Field(ge=1, le=20)] = 5
    """Newton-Schulz steps towards the nearest matrix whose singular values are all 1; five bring them to 0.7 to 1.2."""
    scale: Literal["adamw", "jordan", "spectral"] = "adamw"
    """Factor on the orthogonal matrix [d_out, d_in]. adamw: 0.2 sqrt(max(d_out, d_in)), an update as large as AdamW's,
    so that its learning rates and weight decay hold (Liu 2025, Moonlight). jordan: sqrt(max(1, d_out / d_in))
    (Jordan 2024; rates about 0.02). spectral: sqrt(d_out / d_in) (Bernstein 2025)."""
    adam_lr: Positive | None = None
    """Peak learning rate of AdamW for all that is no matrix; it follows the schedule of train.lr. null: train.lr."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the Newton-Schulz products; bfloat16 as in Jordan's code is the faster on a GPU."""


class Schedule(Named):
    """Base class of the schedules: the learning rate after the warm-up. A config names its kind: `schedule: cosine`."""

    section: ClassVar[Section] = "schedule"

    final_lr: ClassVar[float] = 0.1
    """Learning rate at the end, as a part of the peak, unless train.final_lr says another."""
    decay: ClassVar[float] = 0.0
    """Share of the steps after the warm-up that decay, unless train.decay says another. 0: no phase of its own."""
    holds_peak: ClassVar[bool] = False
    """Whether the rate stays at its peak for a while, so that a longer run can go on from there."""


ScheduleName = Annotated[str, KindName(Schedule)]


class Cosine(Schedule):
    """Half a wave from the peak to the end (Loshchilov 2017)."""

    kind: Literal["cosine"] = "cosine"


class Linear(Schedule):
    """A line from the peak to the end."""

    kind: Literal["linear"] = "linear"


class Constant(Schedule):
    """The peak until the end."""

    kind: Literal["constant"] = "constant"
    final_lr: ClassVar[float] = 1.0
    holds_peak: ClassVar[bool] = True


class WSD(Schedule):
    """Warm-up, stable, decay: the peak, then a line to the end (Hu 2024)."""

    kind: Literal["wsd"] = "wsd"
    decay: ClassVar[float] = 0.2
    holds_peak: ClassVar[bool] = True


class Objective(Registered):
    """Base class of the objectives: what training minimizes, beside z-loss and the losses of routers."""

    section: ClassVar[Section] = "objective"
    default_kind: ClassVar[str | None] = "next_token"


class NextToken(Objective):
    """Cross-entropy of each token, given those before it."""

    kind: Literal["next_token"] = "next_token"


class LrMultipliers(Settings):
    """Factors on the learning rate by role, of any optimiser; weight decay, which is times the rate, goes along."""

    embedding: Positive = 1.0
    """Tables looked up: tokens, positions, distances beside the scores."""
    input: Positive = 1.0
    """Projections that read the stream: q, k, v, up, gate and those of mixers."""
    narrow: Positive = 1.0
    """Projections to few numbers that are read all together: routers of experts, latents."""
    output: Positive = 1.0
    """Projections that write to the stream: attention's output, the MLP's down."""
    head: Positive = 1.0
    """The untied head, and the projection before it."""
    convolution: Positive = 1.0
    """Kernels of convolutions over tokens."""
    constant: Positive = 1.0
    """What starts at a given value: norms, biases, sinks, rates of forgetting."""
