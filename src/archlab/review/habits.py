"""Notes on training: what is unusual where every text is seen once."""

from archlab.atlas.models import PublishedModel
from archlab.review import measures
from archlab.review.case import Reading
from archlab.review.rule import Between, Measured, MoreThanZero, ShapeRule, always

_ANDRIUSHCHENKO = ("andriushchenko2023", "read off")


def _published_dropout(entry: PublishedModel) -> list[Reading]:
    return [] if entry.about.dropout is None else [Reading("dropout", entry.about.dropout)]


def _published_decay(entry: PublishedModel) -> list[Reading]:
    return [] if entry.about.weight_decay is None else [Reading("train.weight_decay", entry.about.weight_decay)]


HABITS: tuple[ShapeRule, ...] = (
    ShapeRule(
        name="dropout",
        level="note",
        measure=measures.dropout,
        usual=always(Between(0, 0)),
        why="A model that sees each text once does not overfit, so that dropout only slows it down. It is for small "
        "data that is read many times.",
        sources=("liu2025",),
        claims=(11,),
        broken_by=("model.dropout=0.1",),
        kept_by=("model.dropout=0",),
        measured=(Measured(0, "better on all tasks than with dropout", "liu2025", "Pythia 160M and 1.4B"),),
        published=_published_dropout,
    ),
    ShapeRule(
        name="weight decay",
        level="note",
        measure=measures.weight_decay,
        usual=always(Between(0.01, 0.3)),
        why="0.1 is the habit. In one epoch it does not regularise: it acts through the size of the steps, so that "
        "another value asks for another learning rate.",
        sources=("andriushchenko2023",),
        claims=(11,),
        broken_by=("train.weight_decay=0",),
        kept_by=("train.weight_decay=0.01",),
        measured=(
            Measured(0, "training loss 3.30 against 3.28 with 0.1, cosine schedule", *_ANDRIUSHCHENKO),
            Measured(0.3, "training loss 3.28, as with 0.1, cosine schedule", *_ANDRIUSHCHENKO),
        ),
        published=_published_decay,
    ),
    ShapeRule(
        name="warm-up of post-norm",
        level="note",
        measure=measures.post_norm_warmup,
        usual=always(MoreThanZero()),
        why="At the start the gradients of a post-norm model are largest in its last layers; without a warm-up it "
        "often diverges.",
        sources=("xiong2020",),
        claims=(1,),
        broken_by=("model.norm.placement=post", "train.warmup=0"),
        kept_by=("model.norm.placement=post",),
        measured=(
            Measured(
                0,
                "BLEU 32.0 with RAdam in its place, 32.3 with a warm-up; pre-norm without one 33.4 (IWSLT)",
                "xiong2020",
                "read off",
            ),
        ),
        published=lambda entry: [],
    ),
)
