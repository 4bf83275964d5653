"""The slow twin: one context and one code sequence in plain numpy, straight from the formulas of docs/network.md."""

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from model.features import FeatureConfig
from model.network import NetworkConfig

Array = npt.NDArray[np.float64]
Weights = dict[str, Array]
EPSILON = float(np.finfo(np.float64).eps)
DAY_MS = 86_400_000.0


def weights_of(module: nn.Module) -> Weights:
    """Of a module in float64."""
    return {name: value.numpy() for name, value in module.double().state_dict().items()}


def under(weights: Weights, prefix: str) -> Weights:
    return {
        n.removeprefix(f"{prefix}."): w for n, w in weights.items() if n.startswith(f"{prefix}.")
    }


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def rms_norm(x_NH: Array, weight: Array) -> Array:
    return x_NH / np.sqrt((x_NH**2).mean(-1, keepdims=True) + EPSILON) * weight


def feed_forward(x_NH: Array, w: Weights) -> Array:
    gate, up = np.split(x_NH @ w["inner.weight"].T, 2, -1)
    return (silu(gate) * up) @ w["outer.weight"].T


def attention_logits(queries_QH: Array, keys_NH: Array, w: Weights, num_heads: int) -> Array:
    """[A, Q, N] by loops over heads, queries and keys."""
    to_key, _ = np.split(w["to_key_value.weight"], 2)
    head_width = queries_QH.shape[1] // num_heads
    logits = np.zeros((num_heads, len(queries_QH), len(keys_NH)))
    for a in range(num_heads):
        part = slice(a * head_width, (a + 1) * head_width)
        for i, query in enumerate(queries_QH):
            for j, key in enumerate(keys_NH):
                met = (w["to_query.weight"][part] @ query) @ (to_key[part] @ key)
                logits[a, i, j] = met / np.sqrt(head_width)
    return logits


def attention(
    queries_QH: Array,
    keys_NH: Array,
    w: Weights,
    num_heads: int,
    *,
    causal: bool = False,
    distances_AR: Array | None = None,
) -> Array:
    _, to_value = np.split(w["to_key_value.weight"], 2)
    values_NH = keys_NH @ to_value.T
    logits_AQN = attention_logits(queries_QH, keys_NH, w, num_heads)
    if distances_AR is not None:
        for i in range(len(queries_QH)):
            for j in range(i + 1 if causal else len(keys_NH)):
                logits_AQN[:, i, j] += distances_AR[:, i - j]
    mixed = np.zeros_like(queries_QH)
    for a, values in enumerate(np.split(values_NH, num_heads, 1)):
        part = slice(a * values.shape[1], (a + 1) * values.shape[1])
        for i in range(len(queries_QH)):
            visible = i + 1 if causal else len(keys_NH)
            mixed[i, part] = softmax(logits_AQN[a, i, :visible]) @ values[:visible]
    return mixed @ w["out.weight"].T


def encoder(
    x_NH: Array, w: Weights, num_heads: int, layers: str = "layers", *, causal: bool = False
) -> Array:
    """As many pre-norm layers as `w` has, with what it has of distances, and the final norm."""
    distances_LAR = w.get("distances_LAR")
    for i in range(sum(name.endswith("ffn_norm.weight") for name in w)):
        layer = under(w, f"{layers}.{i}")
        normed = rms_norm(x_NH, layer["attention_norm.weight"])
        x_NH = x_NH + attention(
            normed,
            normed,
            under(layer, "attention"),
            num_heads,
            causal=causal,
            distances_AR=None if distances_LAR is None else distances_LAR[i],
        )
        normed = rms_norm(x_NH, layer["ffn_norm.weight"])
        x_NH = x_NH + feed_forward(normed, under(layer, "ffn"))
    return rms_norm(x_NH, w["norm.weight"])


def recent(items_RH: Array, w: Weights, num_heads: int, *, causal: bool = False) -> Array:
    """Position 0 is the newest, which comes last."""
    if "distances_LAR" in w:
        return encoder(items_RH, w, num_heads, causal=causal)
    positions = np.stack([w["positions_RH"][len(items_RH) - 1 - i] for i in range(len(items_RH))])
    return encoder(items_RH + positions, w, num_heads, causal=causal)


def mid_term(items_MH: Array, w: Weights, num_heads: int, chunk_len: int) -> Array:
    """Every chunk by itself."""
    starts = range(0, len(items_MH), chunk_len)
    return np.concatenate([encoder(items_MH[i : i + chunk_len], w, num_heads) for i in starts])


def bucket(value: int, num_buckets: int, salt: int = 0) -> int:
    """splitmix64 in Python integers."""
    if value == 0:
        return 0
    mask = 2**64 - 1
    value ^= salt & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return 1 + (value ^ (value >> 31)) % (num_buckets - 1)


def item_vector(row: Any, w: Weights, config: FeatureConfig) -> Array:
    """One interaction to its vector [H]."""
    vid = np.zeros(w["vid.weight"].shape[1])
    for i in range(config.item_hashes):
        salt = i * 0x9E3779B97F4A7C15
        vid = vid + w["vid.weight"][bucket(int(row["item_id"]), config.item_buckets, salt)]
    rows = [
        bucket(int(row["author_id"]), config.author_buckets),
        bucket(int(row["tag"]), config.tag_buckets),
        *(int(np.ceil(2 * np.log2(1.0 + row[n]))) for n in ("play_time_ms", "duration_ms")),
    ]
    others = [w[f"others.{i}.weight"][chosen] for i, chosen in enumerate(rows)]
    kinds = [float(int(row["kinds"]) >> kind & 1) for kind in range(10)]
    phases = [
        float(row["event_time_ms"]) * (2 * np.pi / (DAY_MS * days))
        for days in (1, 7, 30, 91, 365, 1461)
    ]
    dense = [*kinds, *np.sin(phases), *np.cos(phases)]
    inner = silu(w["mlp.0.weight"] @ np.concatenate([vid, *others, dense]) + w["mlp.0.bias"])
    return vid + w["mlp.2.weight"] @ inner + w["mlp.2.bias"]


def indexer_scores(query_H: Array, keys_MH: Array, w: Weights, heads: int, relu: bool) -> Array:
    """[M] by loops over keys and heads."""
    gates = w["to_gate.weight"] @ query_H + w["to_gate.bias"]
    to_query, to_key = (np.split(w[f"{name}.weight"], heads) for name in ("to_query", "to_key"))
    scores = np.zeros(len(keys_MH))
    for j, key in enumerate(keys_MH):
        for g in range(heads):
            met = (to_query[g] @ query_H) @ (to_key[g] @ key) / np.sqrt(len(to_query[g]))
            scores[j] += gates[g] * (max(met, 0.0) if relu else met)
    return scores


def branch(states_PH: Array, keys_NH: Array, w: Weights, num_heads: int) -> Array:
    """D_s* of one stream; the states alone where the stream is absent."""
    if not len(keys_NH):
        return states_PH
    queries = rms_norm(states_PH, w["query_norm.weight"])
    seen = states_PH + attention(queries, keys_NH, under(w, "attention"), num_heads)
    return seen + feed_forward(rms_norm(seen, w["ffn_norm.weight"]), under(w, "ffn"))


def block(
    states_PH: Array, context: dict[str, Array], w: Weights, config: NetworkConfig, select: bool
) -> Array:
    """`context`: encoded recent, mid_term, lifecycle."""
    heads = config.layer.num_heads
    normed = rms_norm(states_PH, w["self_norm.weight"])
    attended = attention(normed, normed, under(w, "self_attention"), heads, causal=True)
    states_PH = states_PH + attended
    mid_term = context["mid_term"]
    if select and len(mid_term) > config.mid_term.top_k:
        chosen, query = config.mid_term, states_PH[0]
        if config.residual == "literal":
            query = rms_norm(query, np.ones_like(query))
        scores = indexer_scores(
            query, mid_term, under(w, "indexer"), chosen.indexer_heads, chosen.indexer_relu
        )
        mid_term = mid_term[np.argsort(-scores, kind="stable")[: chosen.top_k]]
    segments = {**context, "mid_term": mid_term}
    branches = [branch(states_PH, keys, under(w, name), heads) for name, keys in segments.items()]
    if config.residual == "literal":
        return np.sum(branches, 0)
    return states_PH + np.sum([one - states_PH for one in branches], 0)


def decode(
    codes: list[int], context: dict[str, Array], w: Weights, config: NetworkConfig, select: bool
) -> Array:
    """[P + 1, H] for a prefix of P codes."""
    tied = config.codebooks == "tied"
    embedded = [w["bos_H"]]
    for level, code in enumerate(codes):
        vector = w["codebooks_DKH"][0 if tied else level, code]
        embedded.append(vector + w["levels_DH"][level] if tied else vector)
    states = np.stack(embedded)
    for i in range(config.num_blocks):
        states = block(states, context, under(w, f"decoder.blocks.{i}"), config, select)
    return rms_norm(states, w["decoder.norm.weight"])


def logits(state_H: Array, level: int, w: Weights, config: NetworkConfig) -> Array:
    """[K]"""
    tables = w["codebooks_DKH" if config.tied_output else "output_codebooks_DKH"]
    return tables[0 if config.codebooks == "tied" else level] @ state_H
