"""One suite for every data-set plugin there is, on the small files of tests/data; and the real ones, where they are."""

import os
from collections import Counter
from pathlib import Path

import pytest

from draftsmith.core import registry
from draftsmith.core.errors import DraftsmithError
from draftsmith.core.prompts import Prompt, split_of

DATA = Path(__file__).parent.parent / "data"
NAMES = registry.names("datasets")


def read(name: str, folder: Path = DATA) -> list[Prompt]:
    return list(registry.load("datasets", name).prompts(folder))


@pytest.mark.parametrize("name", NAMES)
class TestEveryDataset:
    def test_yields_prompts_that_are_text_or_chat_and_not_both(self, name: str) -> None:
        prompts = read(name)
        assert prompts
        for prompt in prompts:
            assert isinstance(prompt, Prompt)
            assert (prompt.text is None) != (prompt.messages is None)
            assert prompt.text or (prompt.messages and prompt.messages[-1].role == "user")

    def test_prompts_carry_the_name_of_the_data_set(self, name: str) -> None:
        assert {prompt.dataset for prompt in read(name)} == {name}

    def test_keys_are_unique_and_not_blank(self, name: str) -> None:
        keys = [prompt.key for prompt in read(name)]
        assert len(set(keys)) == len(keys)
        assert all(key.strip() for key in keys)

    def test_two_reads_give_the_same_prompts_in_the_same_order(self, name: str) -> None:
        assert read(name) == read(name)

    def test_splits_hang_on_the_key_alone(self, name: str) -> None:
        for first, second in zip(read(name), read(name), strict=True):
            assert first.split == second.split == split_of(first.key)
            assert first.split in ("train", "probe", "test")

    def test_a_wrong_folder_is_an_error_with_a_way_out(self, name: str, tmp_path: Path) -> None:
        for folder in (tmp_path, tmp_path / "nowhere"):
            with pytest.raises(DraftsmithError) as caught:
                read(name, folder)
            assert str(folder) in caught.value.problem
            assert "--data" in caught.value.way_out

    def test_the_hub_name_is_a_name_or_nothing(self, name: str) -> None:
        hub_name = registry.load("datasets", name).hub_name
        assert hub_name is None or "/" in hub_name


ROWS = {
    "chat": 580,
    "gsm8k": 1_319,
    "hellaswag": 10_042,
    "humaneval": 164,
    "jsonl": 4_262,
    "mmlu": 14_042,
    "specbench": 480,
    "text": 3_300,
}


@pytest.mark.lab
@pytest.mark.skipif("DRAFTSMITH_DATA" not in os.environ, reason="DRAFTSMITH_DATA names no folder with the real data sets")
@pytest.mark.parametrize("name", ROWS)
def test_the_real_data_set(name: str) -> None:
    splits = Counter(prompt.split for prompt in read(name, Path(os.environ["DRAFTSMITH_DATA"])))
    # Repeated questions are dropped; in none of these are they more than one in a hundred.
    assert 0.99 * ROWS[name] <= splits.total() <= ROWS[name], splits
    if name in ("hellaswag", "mmlu", "chat"):
        assert splits["test"] >= 64, splits
