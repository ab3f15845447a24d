"""Windows: a pure function of seed, step and rank. Each epoch has each window exactly once."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from archlab.data import text_data
from archlab.data.shards import Tokens
from archlab.data.text_data import TextData, TextSource, samples, windows_per_epoch
from archlab.errors import UserError


@dataclass
class Named:
    source: str = "text"
    end_of_text: int = -1
    inexact: None = None


@dataclass
class Data:
    train: Tokens
    held_out: Tokens
    token_bytes: np.ndarray
    manifest: Named
    prefix_bytes: int = 0
    document_tokens: tuple[int, ...] = (-1,)


def counting(n: int, *cuts: int) -> Any:
    """Data in which token i is i, cut into shards at several places."""
    tokens = Tokens(np.split(np.arange(n, dtype=np.uint32), cuts))
    return Data(tokens, tokens, np.ones(n, dtype=np.int32), Named())


def batch(data: Any, *which: int) -> np.ndarray:
    return TextData([TextSource("text", data)]).windows(*which).tokens


def window_starts(n_tokens: int, seq_len: int, seed: int, step: int, batch_size: int) -> np.ndarray:
    return text_data.window_starts(n_tokens, seq_len, seed, samples(step, batch_size))


def test_a_batch_does_not_depend_on_what_came_before():
    data = counting(5000)
    expected = batch(data, 7, 11, 8, 16)
    for step in (3, 900, 0):
        batch(data, 7, step, 8, 16)
    text_data._order.cache_clear()
    np.testing.assert_array_equal(batch(data, 7, 11, 8, 16), expected)
    assert expected.shape == (8, 17)
    assert expected.dtype == np.int64


def test_the_order_never_changes_between_versions():
    assert window_starts(1000, 16, 3, 5, 4).tolist() == [389, 501, 181, 805]


@pytest.mark.parametrize("n_tokens", [17, 18, 31, 32, 33, 100, 1000, 1007])
def test_an_epoch_sees_each_window_once(n_tokens: int):
    count = windows_per_epoch(n_tokens, 16)
    assert count == max(1, n_tokens // 16 - 1)
    offsets = set()
    for epoch in range(20):
        starts = np.concatenate([window_starts(n_tokens, 16, 0, epoch * count + i, 1) for i in range(count)])
        assert starts.min() >= 0
        assert starts.max() + 17 <= n_tokens
        assert len(set(starts.tolist())) == count
        assert set(np.diff(np.sort(starts)).tolist()) <= {16}
        offsets.add(int(starts.min()))
    assert len(offsets) > 1 or n_tokens == 17


def test_offsets_reach_every_token():
    seen = np.zeros(200, dtype=bool)
    for step in range(8000):
        seen[window_starts(200, 16, 0, step, 1)[0] :][:17] = True
    assert seen.all()


def test_seeds_and_epochs_differ():
    first, second = window_starts(10_000, 16, 0, 0, 64), window_starts(10_000, 16, 1, 0, 64)
    assert (first % 16)[0] != (second % 16)[0] or (np.argsort(first) != np.argsort(second)).any()
    count = windows_per_epoch(10_000, 16)
    a, b = (np.argsort(window_starts(10_000, 16, 0, epoch, count)) for epoch in (0, 1))
    assert (a != b).mean() > 0.9


def test_a_batch_may_span_epochs():
    count = windows_per_epoch(100, 16)
    starts = window_starts(100, 16, 0, 0, 3 * count)
    np.testing.assert_array_equal(starts, np.concatenate([window_starts(100, 16, 0, i, 1) for i in range(3 * count)]))


def test_windows_cross_shard_borders():
    whole, cut = counting(500), counting(500, 1, 40, 41, 77, 300)
    for step in range(20):
        np.testing.assert_array_equal(batch(cut, 0, step, 4, 32), batch(whole, 0, step, 4, 32))
    windows = batch(cut, 0, 0, 4, 32)
    np.testing.assert_array_equal(windows, windows[:, :1] + np.arange(33))


def held_out_windows(data: Any, seq_len: int, n_tokens: int) -> np.ndarray:
    return TextData([TextSource("text", data)]).held_out(seq_len, n_tokens).tokens


def test_held_out_windows_are_spread_evenly_and_do_not_overlap():
    windows = held_out_windows(counting(1601), 16, 160)
    assert windows[:, 0].tolist() == [i * 160 for i in range(10)]
    np.testing.assert_array_equal(windows, windows[:, :1] + np.arange(17))
    for n_tokens in (16, 100, 1000, 1500):
        starts = held_out_windows(counting(1601), 16, n_tokens)[:, 0]
        assert len(starts) == n_tokens // 16
        assert np.diff(starts).min(initial=16) >= 16


def test_a_small_held_out_text_is_used_whole_and_each_token_is_predicted_once():
    windows = held_out_windows(counting(165), 16, 10_000)
    assert windows[:, 1:].flatten().tolist() == list(range(1, 161))
    assert held_out_windows(counting(165), 16, 1).shape == (1, 17)


def test_a_text_shorter_than_a_window_is_refused():
    for ask in (lambda d: batch(d, 0, 0, 4, 16), lambda d: held_out_windows(d, 16, 100)):
        assert ask(counting(17)).shape[1] == 17
        with pytest.raises(UserError, match=r"train\.seq_len is 16; .* 16 tokens; allowed: up to 15"):
            ask(counting(16))
