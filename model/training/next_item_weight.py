"""How much items scored beside codes count: what makes held-out baskets most probable."""

import torch

from model.network import Network
from model.training.batches import BatchBuilder
from model.training.histories import Index, mixed_by_length
from model.training.losses import encode_batch, sid_log_probs
from model.trie import Trie

_CONTEXTS_AT_ONCE = 32


@torch.inference_mode()
def fit_next_item_weight(network: Network, trie: Trie, builder: BatchBuilder, cuts: Index) -> None:
    """Fit it on the first item of the baskets at `cuts`; a network that scores no items stays as it is."""
    if network.next_item is None or not len(cuts):
        return
    bucket_starts = torch.from_numpy(builder.catalogue.bucket_starts)
    by_codes, by_item = [], []
    for some in mixed_by_length(builder.histories, cuts, _CONTEXTS_AT_ONCE, seed=0):
        batch = builder.build(some, 1, 1, None)
        context, _ = encode_batch(network, batch)
        items = network.next_items(context.recent, batch.catalogue_rows, bucket_starts)
        real = batch.target_weights[:, 0] > 0
        sids_B1 = batch.target_sids[:, :1]
        if items is None or not real.any():
            continue
        log_codes_B1 = sid_log_probs(network, trie, context, sids_B1, select=True)[0]
        shares_B1 = items.of_nodes(trie, trie.num_levels - 1, sids_B1)
        by_codes.append(log_codes_B1[real, 0])
        by_item.append(shares_B1[real, 0].clamp(min=1e-30).log())
    if by_codes:
        network.next_item.fit_weight(torch.cat(by_codes), torch.cat(by_item))
