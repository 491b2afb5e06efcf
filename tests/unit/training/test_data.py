"""Packed text: every token once a round, domains in their shares, and any sequence from its number alone."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from draftsmith.core.errors import DataError

pytest.importorskip("transformers")

from draftsmith.engines._checkpoint import Checkpoint
from draftsmith.training.data import Samples, TextSource, prepare
from draftsmith.training.notes import TrainingNotes
from draftsmith.training.samples import RowDomain, TextDomain


def numbered(start: int, sequences: int, length: int) -> np.ndarray:
    """Tokens that say which sequence they belong to."""
    return np.repeat(np.arange(start, start + sequences), length).astype(np.uint32)


def mixed(weights: tuple[float, ...] = (3.0, 1.0), seed: int = 0) -> Samples:
    domains = {str(i): TextDomain(numbered(1000 * i, 40, 8), 8) for i in range(len(weights))}
    return Samples(domains, {str(i): weight for i, weight in enumerate(weights)}, seed)


def test_domains_have_their_shares() -> None:
    text = mixed((3.0, 1.0, 0.5))
    seen = Counter(int(text.sample(n).tokens_S[0]) // 1000 for n in range(3000))
    assert [seen[i] / 3000 for i in range(3)] == pytest.approx([3 / 4.5, 1 / 4.5, 0.5 / 4.5], abs=0.001)


def test_every_sequence_comes_once_a_round_and_in_another_order_each_round() -> None:
    text = mixed()
    first = [int(text.sample(n).tokens_S[0]) for n in range(2000)]
    mine = [one for one in first if one < 1000]
    rounds = [mine[low : low + 40] for low in range(0, 400, 40)]
    assert all(sorted(one) == list(range(40)) for one in rounds)
    assert rounds[0] != rounds[1]
    assert all(len(set(text.sample(n).tokens_S.tolist())) == 1 for n in range(100))


def test_a_sequence_is_known_from_its_number() -> None:
    whole = [mixed().sample(n).tokens_S.tolist() for n in range(50)]
    text = mixed()
    for n in (49, 7, 30, 0, 1049):
        text.sample(n)
    assert [text.sample(n).tokens_S.tolist() for n in range(50)] == whole
    assert [mixed(seed=1).sample(n).tokens_S.tolist() for n in range(50)] != whole


def test_a_domain_without_a_whole_sequence_is_refused() -> None:
    with pytest.raises(DataError, match="the domain few has less than one sequence"):
        Samples({"few": TextDomain(np.zeros(7, np.uint32), 8)}, {"few": 1.0}, seed=0)


def test_a_domain_that_would_never_be_seen_is_refused() -> None:
    with pytest.raises(DataError, match="the domain 1 would never be seen: its weight 1 is less than a 1000th of all"):
        mixed((5000.0, 1.0))


def test_notes_of_a_killed_run_may_end_in_half_a_line(tmp_path: Path) -> None:
    from draftsmith.training.mesh import world

    whole = '{"step": 0, "loss": 3.0}\n'
    (tmp_path / "training.jsonl").write_text(whole + '{"step": 1, "lo')
    with world() as ranks, TrainingNotes(tmp_path, ranks) as notes:
        notes.add(1, {"loss": 2.0})
    assert (tmp_path / "training.jsonl").read_text() == whole + '{"step": 1, "loss": 2.0}\n'


class TestTokenising:
    @pytest.fixture
    def model(self, target: Path) -> Checkpoint:
        return Checkpoint(target, False)

    def tokens(self, path: Path, model: Checkpoint, folder: Path) -> list[int]:
        found = prepare(TextSource(path=str(path)), model, folder, length=1)
        return [int(found.sample(at).tokens_S[0]) for at in range(len(found))]

    def test_documents_are_apart_by_the_end_token(self, tmp_path: Path, model: Checkpoint) -> None:
        (tmp_path / "a.jsonl").write_text('{"text": "w1 w2"}\n{"text": "w3"}\n')
        (tmp_path / "b.txt").write_text("w4\nw5")
        assert self.tokens(tmp_path, model, tmp_path / "kept") == [5, 6, 2, 7, 2, 8, 9, 2]

    def test_what_was_tokenised_is_kept_until_the_text_changes(self, tmp_path: Path, model: Checkpoint) -> None:
        file = tmp_path / "a.jsonl"
        file.write_text('{"text": "w1"}\n')
        for _ in range(2):
            assert self.tokens(file, model, tmp_path / "kept") == [5, 2]
            assert len(list((tmp_path / "kept").iterdir())) == 1
        file.write_text('{"text": "w1 w1"}\n')
        assert self.tokens(file, model, tmp_path / "kept") == [5, 5, 2]

    def test_text_is_the_same_wherever_it_lies(self, tmp_path: Path) -> None:
        for folder in ("here", "there", "changed"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "text.txt").write_text("w1 w2" if folder != "changed" else "w1 w3")
        os.utime(tmp_path / "there" / "text.txt", (0, 0))
        here, there, changed = (TextSource(path=str(tmp_path / one)).stamp() for one in ("here", "there", "changed"))
        assert here == there != changed

    def test_a_line_without_text_is_refused(self, tmp_path: Path, model: Checkpoint) -> None:
        (tmp_path / "a.jsonl").write_text('{"words": "w1"}\n')
        with pytest.raises(DataError, match="text"):
            self.tokens(tmp_path / "a.jsonl", model, tmp_path / "kept")

    def test_a_folder_without_text_is_refused(self, tmp_path: Path, model: Checkpoint) -> None:
        with pytest.raises(DataError, match=r"holds no .jsonl or .txt file"):
            self.tokens(tmp_path, model, tmp_path / "kept")

    def test_a_trace_of_test_prompts_is_refused(self, tmp_path: Path, target: Path, model: Checkpoint) -> None:
        from draftsmith import api

        (tmp_path / "prompts.jsonl").write_text("".join(f'{{"prompt": "w{i} w{i + 1}"}}\n' for i in range(58)))

        def recorded(split: str) -> Path:
            return api.record(
                target=target, datasets=("jsonl",), data=tmp_path / "prompts.jsonl", split=split, num_prompts=2,
                max_new_tokens=4, engine={"dtype": "float32", "threads": 1}, store=tmp_path / "store",
            ).folder  # fmt: skip

        rows = prepare(TextSource(path=str(recorded("train"))), model, tmp_path / "kept", length=16)
        assert isinstance(rows, RowDomain)
        assert sum(rows.num_asked(at) for at in range(len(rows))) == 2 * 4
        with pytest.raises(DataError, match="holds prompts of the test split"):
            prepare(TextSource(path=str(recorded("test"))), model, tmp_path / "kept", length=16)
