"""Chinese words in traditional characters find the same topics as in simplified characters."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from archlab.evidence.look_up import plain
from archlab.evidence.topics import chapters, topics
from archlab.evidence.words import words
from archlab.ui.search import search


@pytest.mark.parametrize(
    ("traditional", "simplified"),
    [
        ("旋轉位置編碼", "旋转位置编码"),
        ("層歸一化", "层归一化"),
        ("歸一化", "归一化"),
        ("詞表", "词表"),
        ("學習率", "学习率"),
        ("優化器", "优化器"),
        ("分組查詢注意力", "分组查询注意力"),
        ("編碼器", "编码器"),
        ("殘差連接", "残差连接"),
        ("激活函數", "激活函数"),
        ("權重衰減", "权重衰减"),
        ("因果掩碼", "因果掩码"),
        ("混合專家", "混合专家"),
        ("知識蒸餾", "知识蒸馏"),
        ("詞彙量", "词汇量"),
    ],
)
def test_traditional_characters_find_the_same(traditional: str, simplified: str):
    expected = search(simplified, Path("/nowhere"))
    assert expected
    assert search(traditional, Path("/nowhere"))[0] == expected[0]


def chinese() -> Iterator[str]:
    """Yield the Chinese characters in the words for topics and chapters."""
    aliases = [*words(), *(alias for _, named in [*topics(), *chapters().items()] for alias in named.aliases)]
    yield from sorted({character for alias in aliases for character in alias if is_chinese(character)})


def is_chinese(character: str) -> bool:
    return "\u4e00" <= character <= "\u9fff"


def test_every_simplified_character_of_our_words_is_known_in_its_traditional_form():
    """Big5 contains traditional characters, and GB 2312 simplified ones. A character that is not in Big5 has another
    traditional form, which `plain` maps to it."""
    big5 = [bytes([high, low]).decode("big5", "ignore") for high in range(0xA4, 0xFA) for low in range(0x40, 0xFF)]
    reached = {plain(character) for character in big5 if is_chinese(character) and plain(character) != character}
    ours = [*chinese()]
    assert all(character.encode("gb2312") for character in ours)
    only_simplified = {character for character in ours if not character.encode("big5", "ignore")}
    assert len(only_simplified) > 50
    assert only_simplified <= reached <= {*ours}
