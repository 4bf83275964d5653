"""The rival: a T5 with random weights under Hugging Face `generate`, kept to the catalogue by a Python trie."""

import importlib.util
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from bench.recommend.python_trie import Prefix, PythonTrie
from bench.recommend.world import Sizes

_PAD = 0


def require_transformers() -> None:
    """End with advice when the package is missing."""
    if importlib.util.find_spec("transformers") is None:
        raise SystemExit(
            "search_rivals needs the package transformers, which is not installed: run `make bench NAME=recommend`, "
            "or `uv pip install -c constraints.txt --group bench`, or choose other sections with --only"
        )


class T5Rival:
    """Encoder and decoder of `num_blocks` layers each, TIGER's way: a token per code of the history, a token per level.

    Feed-forward with ReLU, as in TIGER, of our width: half the arithmetic of SwiGLU. No end-of-sequence token: an answer has as many
    tokens as a SID has levels.
    """

    def __init__(
        self, sizes: Sizes, trie: PythonTrie, dtype: torch.dtype, num_tokens: int, beam_width: int
    ) -> None:
        """Make the network, a history of `num_tokens` tokens and its encoding."""
        from transformers import T5Config, T5ForConditionalGeneration

        torch.manual_seed(0)
        self._offsets = token_offsets(trie.num_levels, sizes.codebook_size)
        config = T5Config(
            vocab_size=1 + trie.num_levels * sizes.codebook_size,
            d_model=sizes.width,
            d_kv=sizes.width // sizes.num_heads,
            d_ff=sizes.ffn_width,
            num_layers=sizes.num_blocks,
            num_decoder_layers=sizes.num_blocks,
            num_heads=sizes.num_heads,
            feed_forward_proj="relu",
            pad_token_id=_PAD,
            decoder_start_token_id=_PAD,
        )
        self._network = T5ForConditionalGeneration(config).eval().requires_grad_(False).to(dtype)
        self._network.generation_config.eos_token_id = None
        self._history = torch.randint(1, config.vocab_size, (1, num_tokens))
        self._mask = torch.ones_like(self._history)
        self._encoded = self._encode()
        self._allowed = tokens_after(trie, sizes.codebook_size)
        self._beam_width = beam_width

    def search(self) -> Tensor:
        """[W, D]: the codes of the beams, best first, with the history encoded beforehand."""
        from transformers.modeling_outputs import BaseModelOutput

        # a new object each time: `generate` repeats its vectors for the beams in place
        return self._generate(encoder_outputs=BaseModelOutput(last_hidden_state=self._encoded))

    def encode_and_search(self) -> Tensor:
        """The same from the history's tokens."""
        return self._generate(input_ids=self._history)

    @torch.inference_mode()
    def _encode(self) -> Tensor:
        encoder = self._network.get_encoder()
        encoded = encoder(input_ids=self._history, attention_mask=self._mask)
        return cast("Tensor", encoded.last_hidden_state)

    @torch.inference_mode()
    def _generate(self, **history: Any) -> Tensor:
        tokens = self._network.generate(
            **history,
            attention_mask=self._mask,
            num_beams=self._beam_width,
            num_return_sequences=self._beam_width,
            max_new_tokens=len(self._offsets),
            do_sample=False,
            use_cache=True,
            prefix_allowed_tokens_fn=self._allowed_after,
        )
        return cast("Tensor", tokens[:, 1:] - torch.tensor(self._offsets))

    def _allowed_after(self, _request: int, tokens: Tensor) -> list[int]:
        return self._allowed[tuple(tokens.tolist()[1:])]


def token_offsets(num_levels: int, codebook_size: int) -> list[int]:
    """The token of code 0 on every level; the padding token comes before them."""
    return [1 + level * codebook_size for level in range(num_levels)]


@cache
def tokens_after(trie: PythonTrie, codebook_size: int) -> dict[Prefix, list[int]]:
    """The trie with tokens in the place of codes."""
    first = token_offsets(trie.num_levels, codebook_size)
    return {
        tuple(first[i] + code for i, code in enumerate(prefix)): [
            first[len(prefix)] + code for code in children
        ]
        for prefix, children in trie.codes.items()
    }
