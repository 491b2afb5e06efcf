"""What the documentation says is there is there: files, links, verbs, options, columns. And no path of anybody's machine."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from draftsmith.cli import app
from draftsmith.core.trace import schema

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELLS = ("bash", "sh", "console")
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
        group = typer.main.get_command(app)
        given = {"": group, **group.commands}  # type: ignore[attr-defined]
        return {verb: {"-h", "--help", *(o for param in command.params for o in param.opts)} for verb, command in given.items()}

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
