"""Notes: shapes, and settings of training, outside what is usually published."""

from archlab.atlas.models import PublishedModel
from archlab.review import measures
from archlab.review.published import RangeNear
from archlab.review.shape_rule import (
    Between,
    Case,
    MoreThanZero,
    PublishedResult,
    Reading,
    ShapeRule,
    always,
    is_large,
    of_layers,
)

_KAPLAN = ("kaplan2020", "figure 5")
_READ_OFF = ("kaplan2020", "figure 5, 50M parameters, read off")
_AINSLIE = ("ainslie2023", "T5 XXL, 64 query heads")
_NARANG = ("narang2021", "table 1, 223M parameters, 5 seeds")
_ANDRIUSHCHENKO = ("andriushchenko2023", "read off")


def usual_vocabulary(languages: int | None) -> Between:
    """By the number of languages; where that is not said, from the smallest to the largest."""
    match languages:
        case None:
            return Between(30_000, 270_000)
        case 1:
            return Between(30_000, 66_000)
        case few if few < 10:
            return Between(50_000, 270_000)
        case _:
            return Between(100_000, 270_000)


def _vocabulary_for(case: Case) -> Between | None:
    return usual_vocabulary(case.languages) if is_large(case) else None


def _head_width_for(case: Case) -> Between:
    return Between(64 if is_large(case) else 8, None)


def _published_dropout(entry: PublishedModel) -> list[Reading]:
    return [] if entry.about.dropout is None else [Reading("dropout", entry.about.dropout)]


def _published_decay(entry: PublishedModel) -> list[Reading]:
    return [] if entry.about.weight_decay is None else [Reading("train.weight_decay", entry.about.weight_decay)]


_HEAD_SHARE = RangeNear(measures.head_share, from_zero=True)
_KV_HEADS = RangeNear(of_layers(measures.all_kv_heads))

UNTIED_HEAD = ShapeRule(
    name="untied head",
    level="note",
    measure=_HEAD_SHARE.measure,
    usual=_HEAD_SHARE,
    why="A head of its own is a second table of tokens; 0 is a tied head (model.head.tied=true). Small models share "
    "one table and spend the parameters on layers. Usual is what published models of the atlas have, from half to "
    "twice the size.",
    sources=("press2016", "tao2024"),
    claims=(10,),
    broken_by=("model.vocab_size=256000",),
    kept_by=("model.vocab_size=151936",),
)

KV_HEADS = ShapeRule(
    name="number of KV heads",
    level="note",
    measure=_KV_HEADS.measure,
    usual=_KV_HEADS,
    why="Each KV head adds to the cache and to what decoding reads; very few cost quality. Usual is what published "
    "models of the atlas have, from half to twice the size.",
    sources=("ainslie2023", "shazeer2019"),
    claims=(13,),
    broken_by=("model.attention={n_heads: 64, n_kv_heads: 64, head_dim: 64}",),
    kept_by=("model.attention={n_heads: 64, n_kv_heads: 8, head_dim: 64}",),
    measured=(
        PublishedResult(1, "mean quality 46.6 against 47.2 with as many KV heads as query heads", *_AINSLIE),
        PublishedResult(8, "mean quality 47.1 against 47.2 with as many KV heads as query heads", *_AINSLIE),
    ),
)

NOTE_RULES: tuple[ShapeRule, ...] = (
    ShapeRule(
        name="d_ff / d_model",
        level="note",
        measure=of_layers(measures.mlp_ratio),
        usual=always(Between(2, 6)),
        why="4 in a plain MLP, 8/3 to 4 in a gated one. The loss is nearly flat from 1 to 10 and rises outside.",
        sources=("kaplan2020", "shazeer2020"),
        claims=(7,),
        broken_by=("model.mlp.d_ff=32768",),
        kept_by=("model.mlp.d_ff=24576",),
        measured=(
            PublishedResult(0.5, "loss 0.75% above that at 1", *_READ_OFF),
            PublishedResult(8, "loss 1.8% above that at 1", *_READ_OFF),
            PublishedResult(25, "loss 4.8% above that at 1", *_READ_OFF),
            PublishedResult(50, "loss 8.4% above that at 1", *_READ_OFF),
        ),
    ),
    ShapeRule(
        name="active experts' d_ff / d_model",
        level="note",
        measure=of_layers(measures.mixture_ratio),
        usual=always(Between(1, 12)),
        why="All experts of a token together are about as wide as a dense MLP would be, or some times as wide, in the "
        "models of the atlas.",
        sources=(),
        broken_by=("model.mlp={kind: moe, experts: 8, active: 4, d_ff: 14336}",),
        kept_by=("model.mlp={kind: moe, experts: 8, active: 2, d_ff: 14336}",),
    ),
    ShapeRule(
        name="n_heads * head_dim / d_model",
        level="note",
        measure=of_layers(measures.attention_width),
        usual=always(Between(0.75, 2)),
        why="1 is the default since 2017. Narrower attention costs quality; wider attention costs parameters, FLOPs "
        "and cache that the MLP could have had.",
        sources=("vaswani2017", "shazeer2019"),
        claims=(8,),
        broken_by=("model.attention.n_heads=80",),
        kept_by=("model.attention.n_heads=64",),
        measured=(
            PublishedResult(
                0.125, "perplexity 30.9 to 31.2 against 29.9 at 1 on Billion Word, the MLP as much wider", "shazeer2019"
            ),
        ),
    ),
    ShapeRule(
        name="d_model / n_layers",
        level="note",
        measure=measures.aspect,
        usual=always(Between(20, 250)),
        why="About 100 is the habit, and a broad optimum. Deep models wait for more layers per token and lean to "
        "pipeline parallelism, wide ones to tensor parallelism.",
        sources=("kaplan2020",),
        claims=(9,),
        broken_by=("model.n_layers=16",),
        kept_by=("model.n_layers=17",),
        measured=(
            PublishedResult(9, "the loss is flat within a few percent from about 9 to 330", *_KAPLAN),
            PublishedResult(32, "final loss 1.843 against 1.831 at 43 and 1.838 at 64", *_NARANG),
            PublishedResult(330, "the loss is flat within a few percent from about 9 to 330", *_KAPLAN),
            PublishedResult(715, "6 layers of 4288: loss within 3% of 48 layers of 1600", *_KAPLAN),
        ),
    ),
    ShapeRule(
        name="head_dim from 64",
        level="note",
        measure=of_layers(measures.head_widths),
        usual=_head_width_for,
        why="Few dimensions leave a head few keys to tell apart, and use only a part of a tensor core; 128 is usual. "
        "In a model of an experiment's width, below d_model = 512, from 8.",
        sources=("vaswani2017",),
        claims=(8,),
        broken_by=("model.attention.head_dim=32",),
        kept_by=("model.attention.head_dim=64",),
        measured=(
            PublishedResult(
                16, "32 heads of 16: perplexity 5.01 (translation) against 4.92 of 8 heads of 64", "vaswani2017"
            ),
        ),
    ),
    ShapeRule(
        name="a norm in every layer",
        level="note",
        measure=of_layers(measures.norms),
        usual=always(MoreThanZero()),
        why="Without a norm nothing bounds the stream, to which every layer adds; every model of the atlas has norms.",
        sources=(),
        broken_by=("model.norm.kind=none",),
        kept_by=("model.norm.kind=layernorm",),
    ),
    ShapeRule(
        name="vocabulary",
        level="note",
        measure=measures.vocabulary,
        usual=_vocabulary_for,
        why="30 to 50 thousand pieces serve one language, 100 to 250 thousand many. Fewer pieces make texts longer, "
        "more make the embedding and the head heavier; larger models deserve more. --languages N says how many.",
        sources=("tao2024",),
        claims=(10,),
        broken_by=("model.vocab_size=16384",),
        kept_by=("model.vocab_size=32768",),
    ),
    ShapeRule(
        name="share of the vocabulary",
        level="note",
        measure=measures.vocabulary_share,
        usual=always(Between(None, 0.6)),
        why="Most of the model is tables of tokens. A smaller vocabulary, or a tied head, leaves more to the layers.",
        sources=("tao2024",),
        claims=(10,),
        broken_by=("model.n_layers=2", "model.d_model=1024", "model.attention.n_heads=8"),
        kept_by=("model.n_layers=24", "model.d_model=2048", "model.attention.n_heads=16"),
    ),
    UNTIED_HEAD,
    KV_HEADS,
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
        measured=(PublishedResult(0, "better on all tasks than with dropout", "liu2025", "Pythia 160M and 1.4B"),),
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
            PublishedResult(0, "training loss 3.30 against 3.28 with 0.1, cosine schedule", *_ANDRIUSHCHENKO),
            PublishedResult(0.3, "training loss 3.28, as with 0.1, cosine schedule", *_ANDRIUSHCHENKO),
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
            PublishedResult(
                0,
                "BLEU 32.0 with RAdam in its place, 32.3 with a warm-up; pre-norm without one 33.4 (IWSLT)",
                "xiong2020",
                "read off",
            ),
        ),
        published=lambda entry: [],
    ),
)
