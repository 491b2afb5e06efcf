"""Chat: reads MT-Bench (turns) and Arena-Hard v0.1 (prompt); yields first turns as chats, for the target's own
template. A folder holds mt_bench/ or arena_hard/ or both. The key is the turn."""

from collections.abc import Iterator
from pathlib import Path

from draftsmith.core.errors import DataError
from draftsmith.core.prompts import Prompt
from draftsmith.core.protocols import Dataset
from draftsmith.datasets._reading import FileDataset, Hub, Source, read_rows, user_prompt

_MT_HUB, _ARENA_HUB = "HuggingFaceH4/mt_bench_prompts", "lmarena-ai/arena-hard-auto"
MT_BENCH = Source("mt_bench", "question.jsonl", "https://github.com/lm-sys/FastChat", Hub(_MT_HUB, "train"))
# The repository is an archive of answers and judgements as well: without `data_file` it does not load.
ARENA_HARD = Source(
    "arena_hard",
    "question_v0.1.jsonl",
    "https://github.com/lmarena/arena-hard-auto",
    Hub(_ARENA_HUB, "train", data_file="data/arena-hard-v0.1/question.jsonl"),
)


def read(folder: Path | None) -> Iterator[Prompt]:
    sources = [source for source in (MT_BENCH, ARENA_HARD) if folder is None or (folder / source.folder).is_dir()]
    if not sources:
        raise DataError(
            f"there is no folder {folder}/mt_bench or {folder}/arena_hard", f"{MT_BENCH.way_out}; one of them is enough"
        )
    for source in sources:
        for row in read_rows(source, folder):
            if source is ARENA_HARD:
                yield user_prompt("chat", row.text("prompt"))
            else:
                # The hub's copy of MT-Bench calls the turns `prompt`.
                yield user_prompt("chat", row.texts("prompt" if folder is None else "turns")[0])


PLUGIN: Dataset = FileDataset(f"{_MT_HUB} + {_ARENA_HUB}", read)
