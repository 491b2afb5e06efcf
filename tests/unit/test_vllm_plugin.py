"""What we mend inside vLLM: the affected version on a CPU, and nothing else. vLLM is a stand-in here."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from draftsmith.vllm_plugin import AFFECTED_VERSIONS, expand_kernel, register


def original() -> None:
    """The kernel that vLLM brings."""


class Stub:
    """vLLM as far as the plugin looks at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, version: str, on_cpu: bool) -> None:
        pytest.importorskip("transformers")
        registered: list[str] = []

        class Platform:
            @staticmethod
            def is_cpu() -> bool:
                return on_cpu

            @classmethod
            def register_triton_kernel_overrides(cls) -> None:
                registered.append(cls.__name__)

        self.registered, self.platform = registered, Platform()
        self.kernels = SimpleNamespace(_expand_kernel_impl=original)
        vllm, platforms, utils = ModuleType("vllm"), ModuleType("vllm.platforms"), ModuleType("vllm.utils")
        vllm.__version__ = version
        self.models: dict[str, str] = {}
        vllm.ModelRegistry = SimpleNamespace(register_model=self.models.__setitem__)
        platforms.current_platform, utils.cpu_triton_utils = self.platform, self.kernels
        for name, module in {"vllm": vllm, "vllm.platforms": platforms, "vllm.utils": utils}.items():
            monkeypatch.setitem(sys.modules, name, module)

    def start_engine(self) -> None:
        self.platform.register_triton_kernel_overrides()


@pytest.mark.parametrize("version", [*AFFECTED_VERSIONS, f"{AFFECTED_VERSIONS[0]}+cpu"])
def test_the_affected_version_gets_our_kernel_and_registers_once(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(monkeypatch, version, on_cpu=True)
    register()
    assert stub.kernels._expand_kernel_impl is expand_kernel
    for _ in range(3):  # engines one after another in a process
        stub.start_engine()
    assert stub.registered == ["Platform"]


def test_our_architectures_are_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftsmith.architectures.trimmed import MODELS

    stub = Stub(monkeypatch, "0.32.1", on_cpu=False)
    register()
    assert set(stub.models) == {model.__name__ for model in MODELS}
    assert all(where == f"draftsmith.architectures.trimmed_vllm:{name}" for name, where in stub.models.items())


def test_being_called_again_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(monkeypatch, AFFECTED_VERSIONS[0], on_cpu=True)
    for _ in range(3):
        register()
        stub.start_engine()
    assert stub.registered == ["Platform"]


@pytest.mark.parametrize(("version", "on_cpu"), [("0.32.1", True), ("0.320.0", True), (AFFECTED_VERSIONS[0], False)])
def test_anything_else_is_left_alone(version: str, on_cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(monkeypatch, version, on_cpu)
    register()
    assert stub.kernels._expand_kernel_impl is original
    for _ in range(2):
        stub.start_engine()
    assert stub.registered == ["Platform", "Platform"]


def test_vllm_finds_it_by_its_entry_point_without_a_heavy_import() -> None:
    code = (
        "import sys; from importlib.metadata import entry_points;"
        "(point,) = (p for p in entry_points(group='vllm.general_plugins') if p.name == 'draftsmith');"
        "print(point.load().__name__, [name for name in ('torch', 'vllm', 'numpy', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "register []"
