"""Words under which people look for a topic."""

import pytest

from archlab.errors import UserError
from archlab.evidence.look_up import by_name, look_up, plain
from archlab.evidence.topics import chapters, topics
from archlab.evidence.words import spellings, words


def test_every_word_leads_to_a_topic():
    assert words().keys() == {word for terms in spellings().values() for word in terms}
    assert {*words().values()} <= dict(topics()).keys()
    assert len(words()) >= 60


def test_no_word_has_two_meanings():
    listed = [plain(word) for terms in spellings().values() for word in terms]
    assert sorted({word for word in listed if listed.count(word) > 1}) == []
    assert sorted(by_name().keys() & {*listed}) == [], "the topic has this spelling already"


def test_a_plus_is_a_word():
    assert plain("Transformer++") == plain("transformer plus plus") != plain("transformer")
    assert plain("Command R+") == plain("command-r-plus")


def test_a_topic_is_explained_under_its_chinese_name():
    found = {
        "旋转位置编码": "rope",
        "分组查询注意力": "gqa",
        "QKV": "attention",
        "中心化": "centering",
        "长度外推": "extrapolation",
        "流水线并行": "parallelism",
        "梯度消失": "residual-stream",
        "算术强度": "arithmetic-intensity",
        "深度": "depth",
        "宽度": "width",
        "共享嵌入": "tied-embeddings",
        "均方根": "rmsnorm",
        "RMS归一化": "rmsnorm",
        "门控": "gated-mlp",
        "旋转编码": "rope",
        "正弦编码": "sinusoidal",
        "词汇表大小": "vocabulary-size",
        "宽高比": "depth",
        "注意力头数": "heads",
        "余弦": "cosine",
        "学习率衰减": "cosine",
        "批量大小": "batch-size",
        "专家": "moe",
        "路由器": "router",
        "混合模型": "hybrid",
        "状态空间": "mamba2",
        "整流线性单元": "relu",
        "因果": "causal",
        "因果解码器": "causal",
        "双向": "two-sided",
        "串行": "serial-block",
        "全局注意力": "layer-pattern",
        "辅助损失": "balance-loss",
        "重计算": "training-memory",
        "注意力下沉": "sinks",
        "内存带宽": "roofline",
        "吞吐量": "prefill-and-decoding",
        "推理成本": "prefill-and-decoding",
        "上下文窗口": "context-length",
    }
    for word, name in found.items():
        assert look_up(word) == (name, dict(topics())[name])


@pytest.mark.parametrize(
    ("word", "chapter"),
    [("嵌入", "vocabulary"), ("词嵌入", "vocabulary"), ("解码器", "blocks"), ("位置嵌入", "positions")],
)
def test_a_chinese_word_for_many_choices_is_a_chapter(word: str, chapter: str):
    assert look_up(word) == chapters()[chapter]


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("exploding gradients", "gradient-clipping"),
        ("vanishing gradients", "residual-stream"),
        ("attention head", "heads"),
        ("optimizers", "adamw"),
        ("optimizer state", "training-memory"),
        ("skip connections", "residual-stream"),
        ("losses", "bits-per-byte"),
        ("no position", "nope"),
        ("learned position", "learned-positions"),
        ("rotary embedding", "rope"),
        ("residual streams", "residual-stream"),
        ("shared embeddings", "tied-embeddings"),
    ],
)
def test_a_topic_is_found_in_the_singular_and_in_the_plural(typed: str, name: str):
    assert look_up(typed) == (name, dict(topics())[name])


def test_every_name_of_a_topic_is_found_in_the_plural():
    """Exceptions: some plurals are names of chapters, and one is a field."""
    names = [name for name in by_name() if name.isascii() and name[-1].isalpha() and name[-1] not in "sxyz"]
    names = [name for name in names if len(name) > 2]
    assert len(names) > 300
    other = {f"{name}s" for name in names if look_up(f"{name}s") != by_name()[name]}
    assert other == {"gates", "hybrids", "mixtures", "ngroups", "parallelblocks", "statespacemodels", "windows"}


@pytest.mark.parametrize("typed", ["los", "bia"])
def test_a_short_word_is_not_completed(typed: str):
    with pytest.raises(UserError, match="unknown topic"):
        look_up(typed)
