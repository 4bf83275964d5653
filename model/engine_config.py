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

    def __post_init__(self) -> None:
        """Check the names."""
        for name, value, choices in (
            ("name", self.name, ("auto", "torch", "openvino")),
            ("precision", self.precision, ("auto", *get_args(Precision))),
        ):
            if value not in choices:
                raise ModelConfigError(
                    f"engine.{name} is {value!r}; it must be one of {', '.join(choices)}"
                )
