"""Write the TorchScript models of the tests into the folder that is the argument."""

import sys
from pathlib import Path

import torch


class Difference(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return left - right, torch.full_like(left, left.shape[0])


class Lookup(torch.nn.Module):
    """Answers in memory of its own, into which the next run writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.tensor([10.0, 20.0, 30.0]))
        self.register_buffer("value", torch.zeros(4, 1))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.value[: index.shape[0]].copy_(self.table[index])


class Words(torch.nn.Module):
    def forward(this, text: list[str]) -> list[str]:  # noqa: N805 - as some write it
        return [word + word for word in text]


class Named(torch.nn.Module):
    def forward(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        if "b" in tensors:
            return tensors["a"] - tensors["b"]
        return tensors["a"]


folder = Path(sys.argv[1])
for name, module in {
    "torch_names": Difference(),
    "torch_indices": Difference(),
    "torch_order": Difference(),
    "torch_lookup": Lookup(),
    "torch_words": Words(),
    "torch_dict": Named(),
    "torch_count": Difference(),
    "torch_optional": Difference(),
    "torch_type": Lookup(),
    "torch_parameter": Lookup(),
}.items():
    (folder / name / "1").mkdir(parents=True, exist_ok=True)
    torch.jit.script(module.eval()).save(str(folder / name / "1" / "model.pt"))
