"""Words under which people look for a topic."""

from archlab.evidence.look_up import by_name, look_up, plain
from archlab.evidence.topics import topics
from archlab.evidence.words import spellings, words


def test_every_word_leads_to_a_topic():
    assert words().keys() == {word for terms in spellings().values() for word in terms}
    assert {*words().values()} <= dict(topics()).keys()
    assert len(words()) >= 60


def test_no_word_has_two_meanings():
    listed = [plain(word) for terms in spellings().values() for word in terms]
    assert sorted({word for word in listed if listed.count(word) > 1}) == []
    assert sorted(by_name().keys() & {*listed}) == [], "the topic has this spelling already"


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
    }
    for word, name in found.items():
        assert look_up(word) == (name, dict(topics())[name])
