"""Rules for notes: shapes and training settings outside the range of published models."""

from archlab.atlas.models import PublishedModel
from archlab.review import measures
from archlab.review.published import RangeNear
from archlab.review.shape_rule import (
    CROSS,
    Between,
    Case,
    MoreThanZero,
    PublishedResult,
    Reading,
    ShapeRule,
    always,
    in_each_layer,
    is_large,
)

_KAPLAN = ("kaplan2020", "figure 5")
_READ_OFF = ("kaplan2020", "figure 5, 50M parameters, values read from the plot, accurate to about 0.1%")
_AINSLIE = ("ainslie2023", "T5 XXL, 64 query heads")
_NARANG = ("narang2021", "table 1, 223M parameters, 5 seeds")
_ANDRIUSHCHENKO = ("andriushchenko2023", "values read from a plot, accurate to about 0.01")


def usual_vocabulary(languages: int | None) -> Between:
    """Return the usual range of vocabulary sizes for a number of languages. None means any number of languages."""
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
_KV_HEADS = RangeNear(in_each_layer(measures.cached_kv_heads, (CROSS,)))  # an encoder has no cache

UNTIED_HEAD = ShapeRule(
    name="untied head",
    level="note",
    measure=_HEAD_SHARE.measure,
    usual=_HEAD_SHARE,
    why="An untied head is a second table as large as the embedding; 0 means a tied head (model.head.tied=true). "
    "Small models usually share one table and spend the parameters on layers. The usual range is that of published "
    "models of half to twice the size in the atlas.",
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
    why="Each KV head makes the cache larger, and decoding must read all of it. Very few KV heads lower the quality. "
    "The usual range is that of published models of half to twice the size in the atlas.",
    sources=("ainslie2023", "shazeer2019"),
    claims=(13,),
    broken_by=("model.attention={n_heads: 64, n_kv_heads: 64, head_dim: 64}",),
    kept_by=("model.attention={n_heads: 64, n_kv_heads: 8, head_dim: 64}",),
    measured=(
        PublishedResult(1, "mean quality 46.6, compared with 47.2 for one KV head per query head", *_AINSLIE),
        PublishedResult(8, "mean quality 47.1, compared with 47.2 for one KV head per query head", *_AINSLIE),
    ),
)

NOTE_RULES: tuple[ShapeRule, ...] = (
    ShapeRule(
        name="d_ff / d_model",
        level="note",
        measure=in_each_layer(measures.mlp_ratio),
        usual=always(Between(2, 6)),
        why="Common values are 4 in a plain MLP, and 8/3 to 4 in a gated one. The loss is nearly flat from 1 to 10 and "
        "rises outside this range.",
        sources=("kaplan2020", "shazeer2020"),
        claims=(7,),
        broken_by=("model.mlp.d_ff=32768",),
        kept_by=("model.mlp.d_ff=24576",),
        measured=(
            PublishedResult(0.5, "loss 0.75% higher than at 1", *_READ_OFF),
            PublishedResult(8, "loss 1.8% higher than at 1", *_READ_OFF),
            PublishedResult(25, "loss 4.8% higher than at 1", *_READ_OFF),
            PublishedResult(50, "loss 8.4% higher than at 1", *_READ_OFF),
        ),
    ),
    ShapeRule(
        name="active experts' d_ff / d_model",
        level="note",
        measure=in_each_layer(measures.mixture_ratio),
        usual=always(Between(1, 12)),
        why="In the models of the atlas, the experts that a token uses are together one to a few times as wide as a "
        "dense MLP.",
        sources=(),
        broken_by=("model.mlp={kind: moe, experts: 8, active: 4, d_ff: 14336}",),
        kept_by=("model.mlp={kind: moe, experts: 8, active: 2, d_ff: 14336}",),
    ),
    ShapeRule(
        name="n_heads * head_dim / d_model",
        level="note",
        measure=in_each_layer(measures.attention_width),
        usual=always(Between(0.75, 2)),
        why="1 has been the default since 2017. Narrower attention lowers the quality. Wider attention takes "
        "parameters, FLOPs and cache that the MLP could use.",
        sources=("vaswani2017", "shazeer2019"),
        claims=(8,),
        broken_by=("model.attention.n_heads=80",),
        kept_by=("model.attention.n_heads=64",),
        measured=(
            PublishedResult(
                0.125,
                "perplexity 30.9 to 31.2, compared with 29.9 at 1 (Billion Word, with a wider MLP to compensate)",
                "shazeer2019",
            ),
        ),
    ),
    ShapeRule(
        name="d_model / n_layers",
        level="note",
        measure=measures.aspect,
        usual=always(Between(20, 250)),
        why="About 100 is common, and the optimum is broad. Deep models run more layers one after another for each "
        "token and suit pipeline parallelism; wide models suit tensor parallelism.",
        sources=("kaplan2020",),
        claims=(9,),
        broken_by=("model.n_layers=16",),
        kept_by=("model.n_layers=17",),
        measured=(
            PublishedResult(9, "the loss is flat within a few percent from about 9 to 330", *_KAPLAN),
            PublishedResult(32, "final loss 1.843, compared with 1.831 at 43 and 1.838 at 64", *_NARANG),
            PublishedResult(330, "the loss is flat within a few percent from about 9 to 330", *_KAPLAN),
            PublishedResult(715, "6 layers of 4288: loss within 3% of 48 layers of 1600", *_KAPLAN),
        ),
    ),
    ShapeRule(
        name="head_dim from 64",
        level="note",
        measure=in_each_layer(measures.head_widths),
        usual=_head_width_for,
        why="A head with few dimensions can distinguish only a few keys, and uses only a part of a tensor core. 128 is "
        "usual. For small experiments (d_model below 512) the minimum is 8.",
        sources=("vaswani2017",),
        claims=(8,),
        broken_by=("model.attention.head_dim=32",),
        kept_by=("model.attention.head_dim=64",),
        measured=(
            PublishedResult(
                16,
                "32 heads of 16: perplexity 5.01 (translation), compared with 4.92 for 8 heads of 64",
                "vaswani2017",
            ),
        ),
    ),
    ShapeRule(
        name="a norm in every layer",
        level="note",
        measure=in_each_layer(measures.norms),
        usual=always(MoreThanZero()),
        why="Every layer adds to the residual stream, and without a norm nothing limits its size. All models of the "
        "atlas have norms.",
        sources=(),
        broken_by=("model.norm.kind=none",),
        kept_by=("model.norm.kind=layernorm",),
    ),
    ShapeRule(
        name="vocabulary",
        level="note",
        measure=measures.vocabulary,
        usual=_vocabulary_for,
        why="One language needs 30 to 50 thousand tokens, many languages need 100 to 250 thousand. A small vocabulary "
        "makes sequences longer; a large one makes the embedding and the head larger. Larger models should have larger "
        "vocabularies. --languages N sets the number of languages.",
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
        why="Most of the parameters are in the embedding and the head. A smaller vocabulary, or a tied head, leaves "
        "more parameters for the layers.",
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
        why="A model that sees each text only once does not overfit, so dropout only slows training down. Dropout "
        "helps with small data that is read many times.",
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
        why="0.1 is common. Within a single epoch, weight decay does not regularize. It changes the effective step "
        "size, so a different value needs a different learning rate.",
        sources=("andriushchenko2023",),
        claims=(11,),
        broken_by=("train.weight_decay=0",),
        kept_by=("train.weight_decay=0.01",),
        measured=(
            PublishedResult(0, "training loss 3.30, compared with 3.28 at 0.1, cosine schedule", *_ANDRIUSHCHENKO),
            PublishedResult(0.3, "training loss 3.28, the same as at 0.1, cosine schedule", *_ANDRIUSHCHENKO),
        ),
        published=_published_decay,
    ),
    ShapeRule(
        name="warm-up of post-norm",
        level="note",
        measure=measures.post_norm_warmup,
        usual=always(MoreThanZero()),
        why="Without a warm-up, training of a post-norm model often diverges. Xiong attributes this to gradients "
        "that are largest in the last layers. Liu denies that they are the root cause.",
        sources=("xiong2020", "liu2020"),
        claims=(1,),
        broken_by=("model.norm.placement=post", "train.warmup=0"),
        kept_by=("model.norm.placement=post",),
        measured=(
            PublishedResult(
                0,
                "BLEU 32.0 with RAdam instead of a warm-up, 32.3 with a warm-up; 33.4 for pre-norm without one (IWSLT)",
                "xiong2020",
                "values read from a plot, accurate to about 0.2",
            ),
        ),
        published=lambda entry: [],
    ),
)
