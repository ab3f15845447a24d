"""Synthetic tasks: solvers that see only tokens answer everything that is scored, and blinded solvers are at chance."""

from collections.abc import Callable, Iterator
from itertools import permutations, product

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from archlab.config.core.base import kind_of
from archlab.config.core.registry import kinds
from archlab.config.tasks import Task
from archlab.config.tasks.compression import Compression
from archlab.config.tasks.copying import SelectiveCopy
from archlab.config.tasks.memorise import Memorise
from archlab.config.tasks.recall import AnyRecall, FuzzyRecall, NoisyRecall, Recall
from archlab.config.tasks.states import StateTracking
from archlab.config.tasks.transduction import Lexicon, Reverse, ShiftedCopy, Sort, Transduction
from archlab.data.tasks.dice import Dice
from archlab.data.tasks.windows import windows
from archlab.data.training_data import Windows
from archlab.errors import UserError

# Each case has a seq_len and a vocab_size that leave some room.
CASES: dict[str, tuple[Task, int, int]] = {
    "recall": (Recall(pairs=6, distance=20), 70, 40),
    "one query": (Recall(pairs=6, queries=1), 40, 40),
    "fuzzy_recall": (FuzzyRecall(pairs=5, key_tokens=3, value_tokens=2, distance=9), 80, 12),
    "noisy_recall": (NoisyRecall(pairs=6, noise=11, noise_vocab=5, distance=4), 50, 30),
    "selective_copy": (SelectiveCopy(copied=7, noise_vocab=3), 40, 25),
    "compression": (Compression(compressed=9), 37, 30),
    "memorise": (Memorise(facts=30), 31, 80),
    "long facts": (Memorise(facts=60, key_tokens=3), 31, 20),
    "parity": (StateTracking(group="parity", steps=9), 50, 9),
    "s3": (StateTracking(steps=5), 50, 20),
    "s5": (StateTracking(group="s5", steps=30), 60, 250),
    "reverse": (Reverse(shortest=6, longest=9), 23, 40),
    "sort": (Sort(shortest=6, longest=9), 24, 40),
    "shifted_copy": (ShiftedCopy(shortest=6, longest=9, shift=-2), 23, 40),
    "lexicon": (Lexicon(shortest=4, longest=7, symbols=6), 40, 30),
    "long words": (Lexicon(shortest=3, longest=4, symbols=4, word_tokens=3), 31, 30),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
RECALLS = pytest.mark.parametrize("name", ["recall", "one query", "fuzzy_recall", "noisy_recall"])


def test_every_task_has_a_case() -> None:
    assert kinds(Task).keys() == {kind_of(type(task)) for task, _, _ in CASES.values()}


def make(case: tuple[Task, int, int], count: int = 50, **changes: object) -> Windows:
    task, seq_len, vocab_size = case
    given = {"seed": 3, "first": 0, "seq_len": seq_len, "vocab_size": vocab_size} | changes
    return windows(task, count=count, **given)  # pyright: ignore[reportArgumentType]


def answers(found: Windows) -> Iterator[tuple[list[int], int]]:
    """Yield (the tokens before it, the answer) for each scored position."""
    for tokens, scored in zip(found.tokens.tolist(), found.scored, strict=True):
        for t in np.flatnonzero(scored):
            yield tokens[: t + 1], tokens[t + 1]


# --- solvers -----------------------------------------------------------------------------------------------


def by_context(task: Task, before: list[int]) -> int:
    """Return the token that followed the last occurrence of these tokens: the tokens of a key, plus those of its value
    so far."""
    shape = task.shape if isinstance(task, AnyRecall) else None
    for n in range(shape.key, shape.key + shape.value) if shape else (1,):
        last_tokens = before[-n:]
        positions = [i for i in range(len(before) - n) if before[i : i + n] == last_tokens]
        if len(positions) == 1:
            return before[positions[0] + n]
    raise AssertionError(f"{before[-8:]}: no answer found")


def by_copying(task: SelectiveCopy, before: list[int]) -> int:
    end = before.index(1)
    return [token for token in before[:end] if token >= 2 + task.noise_vocab][len(before) - end - 1]


def by_place(task: Compression, before: list[int]) -> int:
    end = before.index(1)
    return before[end - task.compressed + before[-1] - 2]


def by_permuting(task: StateTracking, before: list[int]) -> int:
    """Apply the permutations one after another. The number of an order is its position in the sorted list."""
    orders = sorted(permutations(range(task.objects)))
    state = orders[0]
    for token in before:
        if 2 <= token < 2 + len(orders):
            state = tuple(state[i] for i in orders[token - 2])
    return orders.index(state)


def by_order(task: Transduction, before: list[int]) -> int:
    end = before.index(1)
    source, place = before[:end], len(before) - end - 1
    match task:
        case Reverse():
            return list(reversed(source))[place]
        case Sort():
            return sorted(source)[place]
        case ShiftedCopy():
            return source[(place + task.shift) % len(source)]
        case _:
            raise AssertionError(task)


def word_to_translate(task: Lexicon, before: list[int]) -> tuple[int, ...]:
    """Return the word of the source whose translation comes next, and the place in the word."""
    end, size = before.index(1), task.word_tokens
    words = [tuple(before[i : i + size]) for i in range(0, end, size)]
    swapped = [word for i in range(0, len(words), 2) for word in reversed(words[i : i + 2])]
    number, place = divmod(len(before) - end - 1, size)
    return (*swapped[number], place)


def solved(task: Task, seq_len: int, vocab_size: int) -> tuple[int, dict[tuple[int, ...], int]]:
    """Return (number of answers, facts that occurred). Fail at the first wrong answer."""
    facts: dict[tuple[int, ...], int] = {}
    n_answers = 0
    for before, answer in answers(make((task, seq_len, vocab_size))):
        n_answers += 1
        match task:
            case AnyRecall():
                assert answer == by_context(task, before)
            case SelectiveCopy():
                assert answer == by_copying(task, before)
            case Compression():
                assert answer == by_place(task, before)
            case StateTracking():
                assert answer == vocab_size - task.answers(vocab_size) + by_permuting(task, before)
            case Memorise():
                key = tuple(before[-task.key_tokens :])
                assert facts.setdefault(key, answer) == answer
            case Lexicon():
                assert facts.setdefault(word_to_translate(task, before), answer) == answer
            case Transduction():
                assert answer == by_order(task, before)
            case _:
                raise AssertionError(task)
    return n_answers, facts


@EVERY
def test_a_solver_that_reads_tokens_answers_all(case: tuple[Task, int, int]):
    task = case[0]
    n_answers, facts = solved(*case)
    assert n_answers >= 50
    if isinstance(task, Memorise):
        assert len(facts) == task.facts


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not isinstance(case[0], Memorise)])
def test_what_was_not_seen_is_guessed_at_chance(name: str):
    """Two tables of the most frequent answer: one for the position in the window, one for the last token. They can
    solve only the memorization task. For sorting, a table by the number of symbols and the place in the target replaces
    them."""
    case = CASES[name]
    task, _, vocab_size = case
    training, held_out = make(case, 4000), make(case, 1000, split="held_out")
    table: dict[tuple[int, int], np.ndarray] = {}
    views: list[Callable[[list[int]], tuple[int, int]]] = [
        lambda before: (len(before), -1),
        lambda before: (0, before[-1]),
    ]
    if isinstance(task, Sort):
        views = [lambda before: (before.index(1), len(before))]
    for before, answer in answers(training):
        for by in views:
            table.setdefault(by(before), np.zeros(vocab_size))[answer] += 1
    for by in views:
        right = [table[by(before)].argmax() == answer for before, answer in answers(held_out) if by(before) in table]
        chance = task.chance(vocab_size)
        assert np.mean(right) == pytest.approx(chance, abs=5 * np.sqrt(chance / len(right)) + 0.005)


@EVERY
def test_all_answers_are_equally_frequent(case: tuple[Task, int, int]):
    task, _, vocab_size = case
    found = make(case, 4000)
    counts = np.bincount(found.tokens[:, 1:][found.scored], minlength=vocab_size)
    n = task.answers(vocab_size)
    assert counts[:-n].sum() == 0
    if not isinstance(task, Sort):
        assert task.chance(vocab_size) == 1 / n
    if not isinstance(task, Memorise):  # in which values are few, and the same in all windows
        expected = counts.sum() / n
        assert np.abs(counts[-n:] - expected).max() < 6 * np.sqrt(expected)


# --- windows -----------------------------------------------------------------------------------------------


@EVERY
def test_a_window_is_the_same_however_many_are_asked_for(case: tuple[Task, int, int]):
    all_of_them = make(case, 20)
    assert all_of_them.tokens.dtype == np.int64
    assert all_of_them.scored.dtype == bool
    assert all_of_them.tokens.shape == (20, case[1] + 1)
    assert all_of_them.scored.shape == (20, case[1])
    for first, count in ((0, 1), (7, 1), (3, 11), (19, 1)):
        some = make(case, count, first=first)
        np.testing.assert_array_equal(some.tokens, all_of_them.tokens[first : first + count])
        np.testing.assert_array_equal(some.scored, all_of_them.scored[first : first + count])


@EVERY
def test_no_window_is_seen_twice_in_training_or_held_out(case: tuple[Task, int, int]):
    found = [make(case, 300, seed=seed, split=split).tokens for seed in (0, 1) for split in ("train", "held_out")]
    rows = {row.tobytes() for tokens in found for row in tokens}
    assert len(rows) == 4 * 300


@EVERY
def test_the_mean_number_of_answers_is_known(case: tuple[Task, int, int]):
    task, seq_len, _ = case
    assert make(case, 3000).scored.sum(1).mean() == pytest.approx(task.answers_per_window(seq_len), rel=0.02)


@EVERY
def test_tokens_are_of_the_vocabulary(case: tuple[Task, int, int]):
    tokens = make(case, 500).tokens
    assert tokens.min() >= 0
    assert tokens.max() < case[2]


def test_windows_never_change_between_versions():
    found = windows(Recall(pairs=3, queries=2, distance=2), 5, 7, 1, 12, 16)
    assert found.tokens[0].tolist() == [0, 0, 7, 8, 2, 9, 3, 15, 0, 7, 8, 2, 9]
    assert np.flatnonzero(found.scored[0]).tolist() == [9, 11]


@RECALLS
def test_distances_are_as_asked(name: str):
    """Distances from the value to the position that predicts it cover exactly the promised range."""
    task, seq_len, vocab_size = CASES[name]
    assert isinstance(task, AnyRecall)
    key, value = task.shape.key, task.shape.value
    first_value, found = vocab_size - task.answers(vocab_size), set[int]()
    queries = task.asked * (key + value)
    for tokens in make(CASES[name], 3000).tokens.tolist():
        for at in range(seq_len + 1 - queries, seq_len + 1, key + value):
            key_tokens = tokens[at : at + key]
            positions = [
                i for i in range(at - key) if tokens[i : i + key] == key_tokens and tokens[i + key] >= first_value
            ]
            assert len(positions) == 1
            found.add(at + key - 1 - (positions[0] + key))
    least, most = task.distances
    assert (min(found), max(found)) == (least, most)
    assert least == (task.distance or key + value - 1)


def test_a_short_window_does_not_tell_the_answer():
    """In a window shorter than the distance, the right value occurs only by chance."""
    task, window, right, n_answers = Recall(pairs=8, queries=1, distance=30), 30, 0, 0
    for before, answer in answers(windows(task, 0, 0, 4000, 60, 200)):
        n_answers += 1
        right += answer in before[-window:]
    assert right / n_answers < 3 / 100
    nearer = Recall(pairs=8, queries=1)
    is_visible = [answer in before[-30:] for before, answer in answers(windows(nearer, 0, 0, 500, 60, 200))]
    assert all(is_visible)


def test_neither_place_nor_order_tells_a_recalled_value():
    """The token at a fixed distance is right about once per number of pairs."""
    task = Recall(pairs=8)
    found = windows(task, 0, 0, 2000, 31, 64)
    best = max(
        np.mean([before[-1 - back] == answer for before, answer in answers(found) if len(before) > back])
        for back in range(1, 16)
    )
    assert best < 0.2


def test_elimination_answers_as_much_as_is_said():
    """Guess among the values that were not given yet. In such a large vocabulary, two are almost never the same."""
    found = answers(windows(Recall(pairs=8), 0, 0, 3000, 31, 4000))
    right = [min(set(before[1:16:2]) - set(before[17::2]), default=-1) == answer for before, answer in found]
    assert np.mean(right) == pytest.approx(sum(1 / n for n in range(1, 9)) / 8, abs=0.015)


def test_a_sum_of_the_elements_is_not_their_product():
    """In S3 the order matters: the same elements lead to several states."""
    reached: dict[tuple[int, ...], set[int]] = {}
    for before, answer in answers(windows(StateTracking(steps=4), 0, 0, 500, 5, 14)):
        reached.setdefault(tuple(sorted(before)), set()).add(answer)
    assert max(map(len, reached.values())) > 1


def test_words_have_every_length_up_to_the_longest():
    scored = windows(StateTracking(steps=6), 0, 0, 200, 60, 14).scored
    gaps = np.concatenate([np.diff(np.flatnonzero(row)) for row in scored]) - 2  # the question token and the answer
    assert set(gaps.tolist()) == set(range(1, 7))


def test_places_are_asked_for_in_any_order():
    tokens = windows(Compression(compressed=6), 0, 0, 6000, 18, 30).tokens
    for at in range(7, 19, 2):  # after 6 tokens and the question token; each position is equally frequent everywhere
        counts = np.bincount(tokens[:, at] - 2, minlength=6)
        assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)


def test_facts_are_those_of_the_tasks_seed_and_of_no_other():
    def facts(task: Memorise, **changes: object) -> dict[int, int]:
        return {before[-1]: answer for before, answer in answers(make((task, 31, 80), **changes))}

    expected = facts(Memorise(facts=30))
    assert expected == facts(Memorise(facts=30), seed=99) == facts(Memorise(facts=30), split="held_out")
    assert expected != facts(Memorise(facts=30, seed=1))


def test_no_fact_stands_twice_in_a_window():
    for name in ("memorise", "long facts"):
        task = CASES[name][0]
        assert isinstance(task, Memorise)
        for row in make(CASES[name], 200).tokens:
            keys = row[row > 0].reshape(-1, task.key_tokens + 1)[:, :-1]
            assert len(np.unique(keys, axis=0)) == len(keys) > 5


# --- pairs -------------------------------------------------------------------------------------------------

PAIRS = pytest.mark.parametrize("name", [name for name, case in CASES.items() if isinstance(case[0], Transduction)])


@PAIRS
def test_a_window_is_a_source_a_separator_a_target_and_blanks(name: str):
    task, seq_len, vocab_size = CASES[name]
    assert isinstance(task, Transduction)
    found, lengths = make(CASES[name], 300), set[int]()
    assert found.source_lengths is not None
    assert found.lengths is not None
    size, first = task.word_tokens if isinstance(task, Lexicon) else 1, vocab_size - task.answers(vocab_size)
    for row, scored, given, length in zip(found.tokens, found.scored, found.source_lengths, found.lengths, strict=True):
        assert row[given - 1] == 1
        assert length == 2 * given - 1
        assert (np.delete(row[:length], given - 1) >= first).all()
        assert (row[length:] == 0).all()
        assert scored.tolist() == [given <= t + 1 < length for t in range(seq_len)]
        assert given <= seq_len // 2
        lengths.add((given - 1) // size)
    assert lengths == set(range(task.shortest, task.longest + 1))


def test_only_pairs_have_a_source():
    assert make(CASES["recall"]).source_lengths is None
    assert make(CASES["recall"]).lengths is None


@pytest.mark.parametrize(
    "task",
    [
        Reverse(shortest=2, longest=4),
        Sort(shortest=2, longest=4),
        Sort(shortest=1, longest=1),
        ShiftedCopy(shortest=2, longest=4, shift=3),
    ],
    ids=repr,
)
@pytest.mark.parametrize("n_symbols", [2, 5])
def test_chance_is_that_of_the_best_guess_in_all_sources(task: Transduction, n_symbols: int):
    """Count the answers of every possible source, by its length and the place of the answer."""
    right, n_answers, symbols = 0.0, 0, range(2, 2 + n_symbols)
    for n in range(task.shortest, task.longest + 1):
        for place in range(n):
            counts = np.zeros(2 + n_symbols)
            for source in product(symbols, repeat=n):
                counts[by_order(task, [*source, 1, *[0] * place])] += 1
            right += counts.max() / counts.sum()
            n_answers += 1
    assert task.chance(2 + n_symbols) == pytest.approx(right / n_answers)


@pytest.mark.parametrize("shift", [0, 1, 7, -1, -13])
def test_a_shifted_copy_begins_at_its_shift(shift: int):
    found = windows(ShiftedCopy(shortest=3, longest=8, shift=shift), 0, 0, 50, 20, 30)
    assert found.source_lengths is not None
    for row, given in zip(found.tokens.tolist(), found.source_lengths.tolist(), strict=True):
        source, target = row[: given - 1], row[given : 2 * given - 1]
        assert target == np.roll(source, -shift).tolist()


def test_the_dictionary_is_a_permutation_of_all_words():
    """Each of 4 ** 3 words has its own translation, and training and held-out windows have the same ones."""
    task = Lexicon(shortest=1, longest=1, symbols=4, word_tokens=3)
    translations = dict[tuple[int, ...], tuple[int, ...]]()
    for split in ("train", "held_out"):
        for row in windows(task, 0, 0, 600, 8, 30, split).tokens.tolist():
            assert translations.setdefault(tuple(row[:3]), tuple(row[4:7])) == tuple(row[4:7])
    assert len(translations) == len(set(translations.values())) == 64
    assert sum(word == other for word, other in translations.items()) < 8


# --- settings ----------------------------------------------------------------------------------------------

CHANGES: list[tuple[str, str, object]] = [
    ("recall", "pairs", 7),
    ("recall", "queries", 2),
    ("recall", "distance", 21),
    ("fuzzy_recall", "key_tokens", 2),
    ("fuzzy_recall", "value_tokens", 3),
    ("noisy_recall", "noise", 12),
    ("noisy_recall", "noise_vocab", 6),
    ("selective_copy", "copied", 8),
    ("selective_copy", "noise_vocab", 4),
    ("compression", "compressed", 10),
    ("memorise", "facts", 31),
    ("memorise", "key_tokens", 2),
    ("memorise", "seed", 1),
    ("s3", "group", "parity"),
    ("s3", "steps", 6),
    ("reverse", "shortest", 5),
    ("reverse", "longest", 10),
    ("shifted_copy", "shift", 1),
    ("lexicon", "symbols", 7),
    ("lexicon", "word_tokens", 1),
    ("lexicon", "seed", 1),
]


@pytest.mark.parametrize(("name", "field", "value"), CHANGES)
def test_every_field_matters(name: str, field: str, value: object):
    task, seq_len, vocab_size = CASES[name]
    other = TypeAdapter(Task).validate_python({**task.model_dump(), field: value})
    assert (make((other, seq_len, vocab_size)).tokens != make(CASES[name]).tokens).any()


def test_the_changes_name_every_field():
    fields = {(t.kind, f) for t, _, _ in CASES.values() for f in type(t).model_fields}  # pyright: ignore[reportAttributeAccessIssue]
    inherited = {(kind, f) for kind in ("fuzzy_recall", "noisy_recall") for f in AnyRecall.model_fields}
    inherited |= {(kind, f) for kind in ("sort", "shifted_copy", "lexicon") for f in Transduction.model_fields}
    named = {(CASES[name][0].kind, field) for name, field, _ in CHANGES}  # pyright: ignore[reportAttributeAccessIssue]
    assert {(kind, f) for kind, f in fields - inherited if f != "kind"} == named


@EVERY
def test_the_smallest_is_the_smallest(case: tuple[Task, int, int]):
    task = case[0]
    seq_len, vocab_size = task.smallest
    assert make((task, seq_len, vocab_size)).scored.any(axis=1).all()
    assert make((task, seq_len, vocab_size)).tokens.max() < vocab_size
    assert solved(task, seq_len, vocab_size)[0] >= 50
    assert task.chance(vocab_size) <= 1 / 2 or isinstance(task, Sort)
    with pytest.raises(UserError, match=rf"train\.seq_len is {seq_len - 1}; allowed: {seq_len} or more"):
        windows(task, 0, 0, 1, seq_len - 1, vocab_size)
    with pytest.raises(UserError, match=rf"model\.vocab_size is {vocab_size - 1}; allowed: {vocab_size} or more"):
        windows(task, 0, 0, 1, seq_len, vocab_size - 1)


def test_the_smallest_vocabulary_has_a_choice():
    assert Recall(pairs=1).smallest == (3, 4)
    assert Memorise(facts=1).smallest == (1, 4)


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: Recall(pairs=3, queries=4), "queries: 4; allowed: at most 3"),
        (lambda: FuzzyRecall(distance=2), "distance: 2; allowed: at least 3"),
        (lambda: Recall(pairs=0), "greater than or equal to 1"),
        (lambda: Sort(shortest=9, longest=8), r"shortest: 9; allowed: at most 8 \(longest\)"),
        (lambda: Lexicon(symbols=101, word_tokens=3), r"101 \*\* 3 .*; allowed: at most 1,000,000"),
        (lambda: TypeAdapter(Task).validate_python({"kind": "recal"}), "does not match any of the expected tags"),
    ],
)
def test_what_cannot_be_is_refused(make_it: Callable[[], object], message: str):
    with pytest.raises(ValidationError, match=message):
        make_it()


@EVERY
def test_a_description_is_one_sentence(case: tuple[Task, int, int]):
    words = case[0].describe()
    assert words.endswith(".")
    assert ". " not in words


def test_a_description_says_the_distances():
    assert Recall(pairs=8, distance=20).describe() == "Recall 8 of 8 values by their keys, 20 to 48 tokens back."
    assert Recall(pairs=1, distance=20).describe() == "Recall 1 of 1 values by their keys, 20 tokens back."


# --- dice --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "limit"), [(1, 1), (3, 3), (2, 5), (4, 6)])
def test_subsets_are_uniform(n: int, limit: int):
    drawn = Dice(0, "train", 0, 20_000).distinct("x", n, limit)
    assert all(len(set(row)) == n for row in drawn[:500].tolist())
    for column in drawn.T:  # each position has each number equally often
        counts = np.bincount(column, minlength=limit)
        assert np.abs(counts - 20_000 / limit).max() < 5 * np.sqrt(20_000 / limit)


def test_what_is_drawn_under_one_name_moves_nothing_else():
    a, b = windows(Recall(pairs=6), 0, 0, 50, 40, 40), windows(Recall(pairs=6, distance=5), 0, 0, 50, 40, 40)
    np.testing.assert_array_equal(a.tokens[:, -24:-12], b.tokens[:, -28:-16])
    np.testing.assert_array_equal(a.tokens[:, -12:], b.tokens[:, -12:])


def test_streams_differ():
    drawn = [
        Dice(*given, 0, 4).bits(name, 5).tobytes()
        for given in ((0, "train"), (1, "train"), (0, "held_out"))
        for name in "ab"
    ]
    assert len(set(drawn)) == 6
