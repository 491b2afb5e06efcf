"""The command line: quick to answer, settings from file and options, errors without a traceback."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from draftsmith import __version__, api, cli
from draftsmith.core.doctor import Diagnosis, EngineState
from draftsmith.core.errors import MissingDependencyError
from tests.unit.builders import FakeEngine, write_model

COMMANDS = typer.main.get_command(cli.app).commands
VERBS = tuple(COMMANDS)
SLOW = ("torch", "transformers", "vllm", "numpy", "pyarrow", "altair")


class Main:
    """`draftsmith ...`, as a shell would see it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: object) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        self._monkeypatch.setattr(sys, "argv", ["draftsmith", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = self._capsys.readouterr()
        assert "Traceback" not in out + err
        return int(ended.value.code or 0), out, err


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    monkeypatch.setenv("COLUMNS", "200")
    return Main(monkeypatch, capsys)


class StopError(Exception):
    """The verb was called; nothing more is wanted of it."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Parse a command line and give what the verb was called with."""

    def parse(*words: object) -> dict[str, Any]:
        calls: list[dict[str, Any]] = []

        def call(**settings: Any) -> None:
            calls.append(settings)
            raise StopError

        monkeypatch.setattr(api, "record_part", lambda worker, **settings: call(worker=worker, **settings))
        for verb in ("evaluate", "evaluate_live"):
            monkeypatch.setattr(api, verb, call)
        told = CliRunner().invoke(cli.app, [str(word) for word in words])
        assert isinstance(told.exception, StopError), (told.output, told.exception)
        return calls[0]

    return parse


class TestHelp:
    def test_it_answers_in_a_third_of_a_second(self) -> None:
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-m", "draftsmith", "--help"], check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - began)
        assert min(seconds) < 0.3

    @pytest.mark.parametrize("words", [["--help"], *([verb, "--help"] for verb in VERBS)], ids=" ".join)
    def test_it_imports_nothing_slow(self, words: list[str]) -> None:
        code = (
            f"import sys; sys.argv = ['draftsmith', *{words}]\n"
            "from draftsmith.cli import main\n"
            "try: main()\n"
            f"finally: print([name for name in {SLOW} if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"

    @pytest.mark.parametrize("verb", VERBS)
    def test_every_verb_has_its_own(self, main: Main, verb: str) -> None:
        code, out, _ = main(verb, "--help")
        assert code == 0
        assert f"draftsmith {verb}" in out

    def test_every_option_says_what_it_is_for(self) -> None:
        for verb, command in COMMANDS.items():
            assert command.help, verb
            assert not [option.name for option in command.params if not option.help], verb

    def test_no_verb_is_help_too(self, main: Main) -> None:
        _, out, err = main()
        assert "Commands" in out + err

    def test_the_version(self, main: Main) -> None:
        assert main("--version") == (0, f"{__version__}\n", "")
        assert main("--verbose", "--version", "record") == (0, f"{__version__}\n", "")


class TestSettings:
    def test_only_what_was_given_is_passed_on(self, asked: Any) -> None:
        assert asked("record", "--target", "t") == {"store": None, "worker": (0, 1), "target": "t"}
        assert asked("evaluate") == {"store": None}

    def test_options_of_record(self, asked: Any, tmp_path: Path) -> None:
        words = "record --target t --dataset mmlu --dataset chat --tail 3 --temperature 0.5 --engine vllm --worker 1/4"
        assert asked(*words.split(), "--store", tmp_path) == {
            "target": "t",
            "datasets": ("mmlu", "chat"),
            "tail": 3,
            "sampling": {"temperature": 0.5},
            "engine": {"kind": "vllm"},
            "worker": (1, 4),
            "store": tmp_path,
        }

    @pytest.mark.parametrize(
        ("words", "draft"),
        [
            ("--draft ngram", {"kind": "ngram"}),
            ("--draft path", {"kind": "model", "path": "path"}),
            ("--draft path --method probabilistic", {"kind": "model", "path": "path", "method": "probabilistic"}),
        ],
    )
    def test_the_draft(self, asked: Any, words: str, draft: dict[str, str]) -> None:
        assert asked("evaluate", *words.split())["draft"] == draft
        assert asked("evaluate", "--live", *words.split())["draft"] == draft

    def test_the_target_and_the_serving_engine(self, asked: Any) -> None:
        assert asked("evaluate", "--live", "--target", "t") == {"store": None, "target": "t"}
        assert asked("evaluate", "--serve", "vllm") == {"store": None, "serve": "vllm"}

    def test_lookaheads_are_sorted_and_once_each(self, asked: Any) -> None:
        assert asked("evaluate", "--lookahead", "5,1,3,1")["lookaheads"] == (1, 3, 5)

    def test_zero_is_a_setting_too(self, asked: Any) -> None:
        settings = asked("record", "--temperature", "0", "--tail", "0")
        assert (settings["sampling"], settings["tail"]) == ({"temperature": 0.0}, 0)


class TestConfigFile:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "run.yaml"

    def test_options_lie_on_top_of_it(self, asked: Any, file: Path) -> None:
        file.write_text("target: t\ntail: 1\nengine: {kind: vllm, threads: 2}\nsampling: {top_k: 5}\n")
        settings = asked("record", "--config", file, "--tail", "3", "--threads", "4", "--temperature", "1")
        assert settings["target"] == "t"
        assert settings["tail"] == 3
        assert settings["engine"] == {"kind": "vllm", "threads": 4}
        assert settings["sampling"] == {"top_k": 5, "temperature": 1.0}

    def test_a_draft_named_by_one_word(self, asked: Any, file: Path) -> None:
        file.write_text("draft: ngram\n")
        assert asked("evaluate", "--config", file)["draft"] == "ngram"

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("max_new_token: 3", "there is no setting 'max_new_token', did you mean 'max_new_tokens'?"),
            ("tail: many", "tail: Input should be a valid integer"),
            ("- target", "holds a list, not settings"),
            ("target: [", "is not valid YAML"),
        ],
    )
    def test_what_is_wrong_in_it(self, main: Main, file: Path, text: str, problem: str) -> None:
        file.write_text(text)
        code, _, err = main("record", "--target", "t", "--dataset", "mmlu", "--config", file)
        assert code == 1
        assert problem in err
        assert "What to do:" in err

    def test_it_is_not_there(self, main: Main, file: Path) -> None:
        code, _, err = main("record", "--config", file)
        assert (code, f"there is no configuration file {file}" in err) == (1, True)

    def test_a_word_where_settings_belong(self, main: Main, file: Path) -> None:
        file.write_text("engine: vllm\n")
        code, _, err = main("record", "--target", "t", "--dataset", "mmlu", "--config", file)
        assert code == 1
        assert "engine" in err

    @pytest.mark.parametrize("verb", ["record", "evaluate", "evaluate --live"])
    @pytest.mark.parametrize(("text", "named"), [("store: kept", "'store'"), ("worker: 0/2", "'worker'"), ("1: one", "1")])
    def test_a_name_that_is_no_setting_of_a_stage(self, main: Main, file: Path, verb: str, text: str, named: str) -> None:
        file.write_text(text)
        code, _, err = main(*verb.split(), "--config", file)
        assert code == 1
        assert f"{file} sets {named}, which is no setting of a stage" in err
        assert "What to do: give it as an option instead" in err

    @pytest.mark.parametrize("draft", ["ngram", "{kind: ngram, max_ngram: 4}"])
    def test_another_kind_of_draft_replaces_the_files(self, asked: Any, file: Path, draft: str) -> None:
        file.write_text(f"draft: {draft}\n")
        assert asked("evaluate", "--config", file, "--draft", "path")["draft"] == {"kind": "model", "path": "path"}

    def test_another_draft_of_the_same_kind_changes_the_files(self, asked: Any, file: Path) -> None:
        file.write_text("draft: {kind: ngram, max_ngram: 4}\n")
        assert asked("evaluate", "--config", file, "--draft", "ngram")["draft"] == {"kind": "ngram", "max_ngram": 4}
        file.write_text("draft: {kind: model, path: file, method: probabilistic}\n")
        draft = asked("evaluate", "--config", file, "--draft", "option")["draft"]
        assert draft == {"kind": "model", "path": "option", "method": "probabilistic"}

    def test_another_method_for_the_files_draft(self, asked: Any, file: Path) -> None:
        file.write_text("draft: {kind: model, path: path}\n")
        draft = asked("evaluate", "--config", file, "--method", "probabilistic")["draft"]
        assert draft == {"kind": "model", "path": "path", "method": "probabilistic"}

    def test_another_method_for_the_files_draft_of_one_word(self, asked: Any, file: Path) -> None:
        file.write_text("draft: path\n")
        draft = asked("evaluate", "--config", file, "--method", "probabilistic")["draft"]
        assert draft == {"kind": "model", "path": "path", "method": "probabilistic"}

    @pytest.mark.parametrize("before", ["threads: 2, dtype: bfloat16", "kind: transformers, threads: 2, dtype: bfloat16"])
    def test_another_engine_keeps_what_the_file_says_about_it(self, asked: Any, file: Path, before: str) -> None:
        file.write_text(f"engine: {{{before}}}\n")
        settings = asked("record", "--config", file, "--engine", "vllm", "--threads", "4")
        assert settings["engine"] == {"kind": "vllm", "threads": 4, "dtype": "bfloat16"}

    def test_a_word_where_settings_belong_is_not_hidden_by_an_option(self, asked: Any, file: Path) -> None:
        """Or `engine: vllm` with --threads would run transformers."""
        file.write_text("engine: vllm\n")
        assert asked("record", "--config", file, "--threads", "4")["engine"] != {"threads": 4}


class TestErrors:
    @pytest.mark.parametrize("worker", ["2/2", "1", "a/b", "1/", "/2", "-1/2", "0/0", ""])
    def test_a_worker_that_cannot_be(self, main: Main, worker: str) -> None:
        code, _, err = main("record", "--target", "t", f"--worker={worker}")
        assert (code, "--worker" in err, "for example 0/4" in err) == (2, True, True)

    def test_an_option_of_the_other_kind_of_evaluation(self, main: Main) -> None:
        code, _, err = main("evaluate", "--live", "--serve", "vllm")
        assert (code, "--serve" in err, "a live run serves with --engine" in err) == (2, True, True)
        code, _, err = main("evaluate", "--target", "t")
        assert (code, "--target" in err, "add --live to run the target" in err) == (2, True, True)

    @pytest.mark.parametrize("text", ["three", "1,,2", "", "1.5", "1;2"])
    def test_lookaheads_that_are_no_numbers(self, main: Main, text: str) -> None:
        code, _, err = main("evaluate", f"--lookahead={text}")
        assert (code, f"{text!r} is not a list of numbers" in err, "--lookahead" in err) == (2, True, True)

    def test_an_error_of_ours_is_a_message_and_exit_code_1(self, main: Main, tmp_path: Path) -> None:
        code, out, err = main("evaluate", "--trace", tmp_path, "--draft", "ngram")
        assert (code, out) == (1, "")
        assert err.startswith(f"draftsmith: {tmp_path} holds no finished record")
        assert "What to do: check the path" in err

    def test_a_wrong_engine(self, main: Main, tmp_path: Path, engine: FakeEngine) -> None:
        model = write_model(tmp_path / "target")
        code, _, err = main("record", "--target", model, "--dataset", "fake", "--engine", "vlm", "--store", tmp_path)
        assert (code, "did you mean 'vllm'?" in err) == (1, True)

    def test_an_unknown_option(self, main: Main) -> None:
        assert main("record", "--nonsense")[0] == 2

    def test_an_error_that_is_not_ours_is_not_hidden(self, main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(worker: tuple[int, int], **settings: Any) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(api, "record_part", fail)
        with pytest.raises(ZeroDivisionError):
            main("record")


class TestInterrupted:
    @pytest.fixture(autouse=True)
    def interrupted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(worker: tuple[int, int], **settings: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(api, "record_part", interrupt)

    def test_it_ends_with_130(self, main: Main) -> None:
        assert main("record")[0] == 130

    def test_it_says_that_nothing_is_lost(self, main: Main) -> None:
        assert "the same command goes on where it stopped" in main("record")[2]


class TestDoctor:
    def found(self, monkeypatch: pytest.MonkeyPatch, *engines: EngineState, warnings: tuple[str, ...] = ()) -> None:
        machine = {"cpu": "a processor", "cores": 2, "memory_gb": 8.0, "gpus": []}
        monkeypatch.setattr(api, "doctor", lambda: Diagnosis(machine=machine, packages={}, engines=engines, warnings=warnings))

    USABLE = EngineState(name="transformers", usable=True, versions={"torch": "2.13.0"})

    def broken(self, problem: str = "needs the package 'vllm'") -> EngineState:
        return EngineState(
            name="vllm", usable=False, versions={}, problem=problem, way_out="pip install 'draftsmith[vllm]' (CUDA)"
        )

    def test_what_is_usable_and_what_to_do_for_the_rest(self, main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found(monkeypatch, self.USABLE, self.broken(), warnings=("pip install 'draftsmith[report]'",))
        code, out, _ = main("doctor")
        assert code == 0
        assert "a processor, 2 cores, 8.0 GB; GPUs: none" in out
        assert "transformers: torch 2.13.0" in out
        assert "vllm: needs the package 'vllm'" in out
        assert "pip install 'draftsmith[vllm]' (CUDA)" in out
        assert "pip install 'draftsmith[report]'" in out

    def test_no_engine_at_all_is_exit_code_1(self, main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found(monkeypatch, self.broken())
        assert main("doctor")[0] == 1

    @pytest.mark.parametrize("problem", ["cannot open [/usr/lib/libx.so]", "list[int] is not a type", "run [bold] again"])
    def test_brackets_in_a_problem(self, main: Main, monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
        self.found(monkeypatch, self.USABLE, self.broken(problem))
        assert problem in main("doctor")[1]


class TestTheFlow:
    @pytest.fixture
    def models(self, tmp_path: Path, engine: FakeEngine) -> tuple[Path, Path]:
        return write_model(tmp_path / "target", 1.0), write_model(tmp_path / "draft")

    def record(self, main: Main, target: Path, store: Path, *more: object) -> tuple[int, str, str]:
        words = "--dataset fake --num-prompts 4 --max-new-tokens 6 --shard-size 2 --engine fake"
        return main("record", "--target", target, *words.split(), "--store", store, *more)

    def test_record_evaluate_live(self, main: Main, tmp_path: Path, models: tuple[Path, Path]) -> None:
        target, draft = models
        code, out, err = self.record(main, target, tmp_path)
        trace = Path(out.strip())
        assert (code, (trace / "record.json").exists()) == (0, True)
        assert "recorded 24 tokens of 4 prompts" in " ".join(err.split())

        common = ("--trace", trace, "--draft", draft, "--engine", "fake", "--store", tmp_path)
        code, out, _ = main("evaluate", *common, "--lookahead", "1,2")
        *table, folder, png, svg, page = out.splitlines()
        assert code == 0
        assert "4 prompts of the test split" in "".join(table)
        assert "2.000" in "".join(table)
        assert "3.000" in "".join(table)
        assert all(Path(one).is_file() and Path(one).parent == Path(folder) for one in (png, svg, page))

        code, out, err = main("evaluate", "--live", "--target", target, *common, "--lookahead", "0,2")
        assert code == 0
        assert "live on fake, 4 prompts of the test split" in out
        assert "1.00 x" in out
        assert "no plain baseline" not in err

    def test_a_live_run_without_a_baseline_says_so(self, main: Main, tmp_path: Path, models: tuple[Path, Path]) -> None:
        trace = self.record(main, models[0], tmp_path)[1].strip()
        words = ("--live", "--target", models[0], "--trace", trace, "--draft", "ngram", "--engine", "fake")
        code, out, err = main("evaluate", *words, "--lookahead", "2", "--store", tmp_path)
        assert (code, "no baseline" in out) == (0, True)
        assert "add lookahead 0 before you judge the speed" in err

    def test_without_altair_there_are_numbers_and_a_hint(
        self, main: Main, tmp_path: Path, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(card: Any) -> None:
            raise MissingDependencyError("pictures need Altair", "pip install 'draftsmith[report]'")

        monkeypatch.setattr(api, "picture", refuse)
        trace = self.record(main, models[0], tmp_path)[1].strip()
        code, out, err = main("evaluate", "--trace", trace, "--draft", "ngram", "--engine", "fake", "--store", tmp_path)
        assert (code, "tokens per step" in out) == (0, True)
        assert "no picture: pictures need Altair" in err

    def test_a_worker_that_is_not_the_last(self, main: Main, tmp_path: Path, models: tuple[Path, Path]) -> None:
        code, out, err = self.record(main, models[0], tmp_path, "--worker", "0/2")
        assert code == 0
        assert (Path(out.strip()) / "shard-00000.parquet").exists()
        assert "complete once the other workers are done" in " ".join(err.split())

    def test_one_prompt_has_no_error(self, main: Main, tmp_path: Path, models: tuple[Path, Path]) -> None:
        trace = self.record(main, models[0], tmp_path, "--num-prompts", "1")[1].strip()
        words = ("--trace", trace, "--draft", models[1], "--lookahead", "1", "--engine", "fake", "--store", tmp_path)
        code, out, _ = main("evaluate", *words)
        table = out.split("first position")[1]
        assert (code, "2.000" in table, "±" in table) == (0, True, False)
