"""Settings of what runs the decoder; free of PyTorch, so that reading a configuration is quick."""

from dataclasses import dataclass
from typing import Literal, get_args

from model.errors import ModelConfigError

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What runs the decoder's steps. Raises ModelConfigError for unknown names."""

    name: Literal["auto", "torch", "openvino"] = "auto"
    """`auto` measures at start-up and takes the fastest."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`auto`: bf16 where that needs less than 90 % of the time of fp32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`cuda`: PyTorch on a GPU; `auto` measures that, too, where PyTorch sees one."""

    def __post_init__(self) -> None:
        """Check the names, and that OpenVINO is not asked for on a GPU."""
        for name, value, choices in (
            ("name", self.name, ("auto", "torch", "openvino")),
            ("precision", self.precision, ("auto", *get_args(Precision))),
            ("device", self.device, ("auto", "cpu", "cuda")),
        ):
            if value not in choices:
                raise ModelConfigError(
                    f"engine.{name} is {value!r}; it must be one of {', '.join(choices)}"
                )
        if (self.name, self.device) == ("openvino", "cuda"):
            raise ModelConfigError(
                "engine.name is 'openvino' and device 'cuda'; on a GPU PyTorch runs the decoder: set name to 'torch' or 'auto'"
            )
