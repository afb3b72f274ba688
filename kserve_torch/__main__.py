"""``python -m kserve_torch``."""

from kserve_torch.cli import program

if __name__ == "__main__":
    program("kserve_torch")
