"""Settings of distillation: training with the predictions and hidden states of a trained model, the teacher."""

from typing import Annotated

from pydantic import Field

from archlab.config.core.base import NonNegative, Positive, Settings


class TeacherConfig(Settings):
    """Teacher of a run. The minimized loss is `objective` times the loss of train.objective, plus `logits` times the
    divergence of the logits, plus `hidden` times the distance of the layers. The z-loss (train.z_loss) and the
    auxiliary losses of routers are added as without a teacher.

    Hinton's mixture with the share alpha of the teacher (2015, arXiv 1503.02531) is `objective: 1 - alpha` and
    `logits: alpha`.
    """

    path: Annotated[str, Field(min_length=1)] | None = None
    """Trained weights of the teacher: a run folder (its last checkpoint), a Hugging Face folder or a hub id. Its
    vocabulary must be that of the model. Its weights do not change. null: the weights from which the run begins
    (train.start)."""
    objective: NonNegative = 1.0
    """Weight of the loss of train.objective. 0: the model learns only from the teacher, as in the last stage of MOHAWK
    (Bick 2024)."""
    logits: NonNegative = 1.0
    """Weight of temperature^2 * KL(p || q), with the teacher's distribution p and the model's distribution q at the
    temperature (Hinton 2015). It is the mean over the tokens that count in train.objective."""
    temperature: Positive = 1.0
    """Number by which the logits of both models are divided in the divergence. Above 1, unlikely tokens matter more.
    The factor temperature^2 keeps the size of the gradients."""
    hidden: NonNegative = 0.0
    """Weight of the distance of the layers, as in stage 2 of MOHAWK (Bick 2024, arXiv 2408.10189). Each layer of the
    model gets the teacher's input of the same layer. The loss is the Euclidean distance between the outputs of the two
    layers, averaged over the tokens that count in train.objective and summed over the layers. Both models need the same
    d_model and n_layers, and no encoder. A step then needs a second pass through the model's layers."""
