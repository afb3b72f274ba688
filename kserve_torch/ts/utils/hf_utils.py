"""``ts.utils.hf_utils``."""

from __future__ import annotations

import importlib

from kserve_torch.ts.absent import require

#: torch's weights and the files that belong to them; repositories hold other formats too.
_FILES = ["*.json", "*.pt", "*.bin", "*.txt", "*.model", "*.pth", "*.safetensors", "original/*"]


def download_model(
    model_id: str = "meta-llama/Meta-Llama-3.1-8B-Instruct",
    revision: str = "main",
    model_path: str = ".cache",
    use_auth_token: bool | str = True,
) -> str:
    """Download a model from the Hugging Face hub.

    Args:
        model_id: the repository.
        revision: its branch, tag or commit.
        model_path: the cache that it goes into.
        use_auth_token: the token, or whether to use the one that is stored.

    Returns:
        The folder with its files.

    Raises:
        LoadFailed: the package huggingface_hub is not installed.
    """
    require("download_model", "huggingface_hub")
    download = importlib.import_module("huggingface_hub").snapshot_download
    return str(
        download(
            repo_id=model_id,
            revision=revision,
            allow_patterns=_FILES,
            cache_dir=model_path,
            token=use_auth_token,
        )
    )
