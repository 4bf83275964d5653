"""How large a network's summaries get: known from its configuration, before a user has one."""

from model.accumulator_codec import AccumulatorLayout
from model.errors import ModelConfigError
from model.network import NetworkConfig
from state.item_statistics_codec import max_encoded_bytes
from state.summary import MAX_SUMMARY_BYTES


def check_summary_size(network: NetworkConfig) -> None:
    """Raises ModelConfigError where a summary could be larger than a state node takes."""
    lifecycle, width = network.lifecycle, network.layer.width
    accumulators = AccumulatorLayout.of(network.layer, lifecycle).num_bytes
    tokens = 4 * lifecycle.num_queries * width
    statistics = max_encoded_bytes(network.repeats.max_items)
    num_bytes = accumulators + tokens + statistics
    if num_bytes > MAX_SUMMARY_BYTES:
        top_r = f"top_r {lifecycle.top_r}, " if lifecycle.delta == "top_r" else ""
        raise ModelConfigError(
            f"summaries would have up to {num_bytes} bytes, {accumulators} of accumulators, {tokens} of tokens and "
            f"{statistics} of item statistics; a state node takes {MAX_SUMMARY_BYTES}. Of lifecycle delta "
            f"{lifecycle.delta!r}, {top_r}num_queries {lifecycle.num_queries}, num_layers {lifecycle.num_layers}, layer "
            f"width {width}, num_heads {network.layer.num_heads} and repeats max_items {network.repeats.max_items}, choose smaller ones"
        )
