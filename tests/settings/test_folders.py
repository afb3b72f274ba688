"""Which of KServe's folders is which."""

from pathlib import Path

import pytest

from kserve_torch.settings.folders import has_kserve_layout, is_kserves


@pytest.mark.parametrize(
    ("there", "so"),
    [
        (["config/config.properties", "model-store/m.mar"], True),
        (["config/config.properties"], True),  # which names another store
        (["model-store/m.mar"], True),
        (["m.mar"], False),
        (["config/other.properties"], False),
        (["config.properties"], False),
    ],
)
def test_either_half_of_kserves_layout_will_do(tmp_path: Path, there: list[str], so: bool) -> None:
    for name in there:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert has_kserve_layout(tmp_path) is so


@pytest.mark.parametrize(
    ("config", "store", "so"),
    [
        ("/m/config/config.properties", "/m/model-store", True),
        ("/m/config/config.properties", None, False),
        ("/m/config/config.properties", "/m/store", False),
        ("/m/config/config.properties", "/other/model-store", False),
        ("/m/config.properties", "/m/model-store", False),
    ],
)
def test_a_config_and_a_store_of_one_folder(config: str, store: str | None, so: bool) -> None:
    assert is_kserves(Path(config), Path(store) if store else None) is so
