"""What the documentation says is there is there: files, links, verbs, options, columns. And no path of anybody's machine."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel

from draftsmith.cli import app, options
from draftsmith.cli_errors import option_of
from draftsmith.core.trace import schema
from draftsmith.forge.ground import ForgeConfig
from draftsmith.stages.distill import DistillConfig
from draftsmith.stages.evaluate import EvaluateConfig
from draftsmith.stages.profile import ProfileConfig
from draftsmith.stages.prune import PruneConfig
from draftsmith.stages.record import RecordConfig
from draftsmith.training.loop import TrainSettings

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELLS = ("bash", "sh", "console")
SETTINGS: dict[str, tuple[type[BaseModel], ...]] = {
    "record": (RecordConfig,), "evaluate": (EvaluateConfig,), "profile": (ProfileConfig,), "prune": (PruneConfig,),
    "distill": (DistillConfig, TrainSettings), "forge": (ForgeConfig,),
}  # fmt: skip
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in _FENCE.findall(page.read_text()) if language in languages]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


class TestTheTree:
    def listed(self) -> set[str]:
        """The paths in the README's tree: two spaces a level, a name, a few words."""
        (block,) = blocks(README, "text")
        above: list[str] = []
        found = set()
        for line in block.splitlines():
            depth = (len(line) - len(line.lstrip())) // 2
            above[depth:] = [line.split()[0].rstrip("/")]
            found.add("/".join(above))
        return found

    def test_everything_named_exists(self) -> None:
        assert [path for path in sorted(self.listed()) if not (ROOT / path).exists()] == []

    def test_every_module_and_benchmark_is_named(self) -> None:
        modules = [path for path in (ROOT / "src" / "draftsmith").rglob("*.py") if path.name != "__init__.py"]
        benchmarks = [path for path in (ROOT / "benchmarks").glob("*.py") if not path.name.startswith("_")]
        assert sorted({name(path) for path in modules + benchmarks} - self.listed()) == []

    def test_every_line_says_something(self) -> None:
        (block,) = blocks(README, "text")
        bare = [line for line in block.splitlines() if len(line.split()) == 1]
        assert [line for line in bare if not line.endswith("/")] == []


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every `draftsmith ...` in a shell block or in a code span."""
    spans = re.findall(r"`(draftsmith [^`\n]+)`", _FENCE.sub("", page.read_text()))
    return words_of([*blocks(page, *SHELLS), *spans])


def words_of(bodies: list[str]) -> Iterator[list[str]]:
    for body in bodies:
        for line in body.replace("\\\n", " ").splitlines():
            for found in re.findall(r"(?<![\w/.-])draftsmith ([^|;&)#]*)", line):
                yield found.split()


class TestTheCommandLine:
    def options(self) -> dict[str, set[str]]:
        """By verb; those of the program itself are under the empty name."""
        own = {name for option in typer.main.get_group(app).params for name in option.opts}
        return {verb: {"-h", "--help"} | known for verb, known in {"": own, **options()}.items()}

    @pytest.mark.parametrize("page", PAGES, ids=name)
    def test_every_verb_and_option_used_exists(self, page: Path) -> None:
        known = self.options()
        for words in commands(page):
            verb = next((word for word in words if not word.startswith("-")), "")
            assert verb in known, words
            used = {word.split("=")[0] for word in words if word.startswith("-")}
            assert used <= known[verb] | known[""], words

    def test_the_pages_do_use_the_command_line(self) -> None:
        verbs = {words[0] for page in PAGES for words in commands(page)}
        assert {"record", "evaluate", "doctor"} <= verbs

    def test_the_tutorial_gives_the_quickstarts_commands(self) -> None:
        """The end-to-end test runs the README's; these are the same."""
        tutorial = ROOT / "docs" / "tutorial.md"
        assert list(words_of(blocks(tutorial, "bash"))) == list(words_of(blocks(README, "bash")))

    def test_the_reference_lists_every_option(self) -> None:
        page = (ROOT / "docs" / "reference" / "cli.md").read_text()
        sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
        shared = set(re.findall(r"^\| `(--[\w-]+)`", sections["Engine options"], re.MULTILINE))
        for verb, known in self.options().items():
            if verb:
                own = set(re.findall(r"^\| `(--[\w-]+)`", sections[verb], re.MULTILINE))
                assert own | (shared if own else set()) == known - {"-h", "--help"}, verb

    def test_help_names_the_defaults_of_the_reference(self) -> None:
        for verb, command in typer.main.get_group(app).commands.items():
            for option in command.params:
                told = option.show_default if isinstance(option.show_default, str) else None  # type: ignore[attr-defined]
                cell = defaults(verb).get(option.opts[0], "")
                is_value = re.fullmatch(r"[\d.e-]+|`[^`]+`(; \w+ `[^`]+`)?|1 to 8", cell) and option.default is None
                assert told == (cell.replace("`", "") if is_value else None), (verb, option.name)

    @pytest.mark.parametrize("verb", SETTINGS)
    def test_the_references_defaults_are_those_of_the_settings(self, verb: str) -> None:
        named = {option_of(setting, options()[verb]): value for kind in SETTINGS[verb] for setting, value in settings_of(kind)}
        numbers = {name: float(cell) for name, cell in defaults(verb).items() if re.fullmatch(r"[\d.e-]+", cell)}
        numbers.pop("--ranks", None)  # a plan's
        assert numbers
        assert {name: named[name] for name in numbers} == numbers


def defaults(verb: str) -> dict[str, str]:
    """What the reference says an option is when nobody gives it."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    section = re.search(rf"^## {verb}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^\| `(--[\w-]+)`[^|]* \| ([^|]*) \|", section[1] if section else "", re.MULTILINE))


def settings_of(kind: type[BaseModel], before: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted name and the default of every setting that has one."""
    for name, field in kind.model_fields.items():
        value = field.get_default(call_default_factory=True)
        if isinstance(value, BaseModel):
            yield from settings_of(type(value), f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def test_the_trace_reference_is_the_schema() -> None:
    page = (ROOT / "docs" / "reference" / "trace.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `([\w<>]+)` \| (yes|no) \|", page, re.MULTILINE)
    plain = {field.name: str(field.type).replace("item: float", "float32").replace("item: ", "") for field in schema()}
    assert rows == [(field.name, plain[field.name], "yes" if field.nullable else "no") for field in schema()]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_resolve(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text()))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:|#", target):
            assert (page.parent / target.split("#")[0]).exists(), target


def test_no_file_names_a_path_of_a_developers_machine() -> None:
    # Written in pieces, because this file is searched too.
    own = re.compile("|".join("/" + place for place in ("work/", "tmp/s", "home/", "Users/", "root/")))
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    for path in (ROOT / line for line in listed):
        if path.is_file():
            text = path.read_bytes().decode(errors="ignore")
            assert not (found := own.search(text)), f"{name(path)}: {text[max(0, found.start() - 30) : found.end() + 30]!r}"
